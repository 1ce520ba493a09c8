#include "apps/gpt/tokenizer.h"
#include "apps/gpt/unicode.h"

namespace lockstep::gpt {
namespace {

/// Bytes of the characters of one class at the front of `text`.
std::size_t run_of(std::string_view text, CharacterClass wanted) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Character c = first_character(text.substr(length));
    if (classify(c.value) != wanted) break;
    length += c.bytes;
  }
  return length;
}

/// Bytes of the word at the front of `text`: GPT-2's
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t first_word(std::string_view text) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(ending)) return ending.size();

  const std::size_t blank = text.size() > 1 && text[0] == ' ' ? 1 : 0;
  const CharacterClass kind = classify(first_character(text.substr(blank)).value);
  if (kind != CharacterClass::space) return blank + run_of(text.substr(blank), kind);

  // Spaces: all of them at the end of the text, else all but the last, which belongs to what follows, unless it is the
  // only one.
  const std::size_t spaces = run_of(text, CharacterClass::space);
  if (spaces == text.size()) return spaces;
  std::size_t last = 0;
  for (std::size_t at = 0; at < spaces; at += first_character(text.substr(at)).bytes) last = at;
  return last > 0 ? last : spaces;
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t length = first_word(text);
    words.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return words;
}

}  // namespace lockstep::gpt
