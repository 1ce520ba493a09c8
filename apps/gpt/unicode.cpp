#include "apps/gpt/unicode.h"

#include <algorithm>
#include <iterator>

#include "apps/gpt/unicode_ranges.h"

namespace lockstep::gpt {
namespace {

template <std::size_t N>
bool contains(const CharacterRange (&ranges)[N], char32_t character) {
  const auto* after = std::upper_bound(std::begin(ranges), std::end(ranges), character,
                                       [](char32_t c, const CharacterRange& range) { return c < range.first; });
  return after != std::begin(ranges) && character <= std::prev(after)->last;
}

}  // namespace

CharacterClass classify(char32_t character) {
  if (contains(kLetters, character)) return CharacterClass::letter;
  if (contains(kNumbers, character)) return CharacterClass::number;
  if (contains(kSpaces, character)) return CharacterClass::space;
  return CharacterClass::other;
}

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const Character bad{0xFFFD, 1};
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return bad;
  char32_t value = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return bad;
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return bad;
  return {value, length};
}

}  // namespace lockstep::gpt
