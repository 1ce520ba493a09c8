#include "apps/gpt/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/gpt/files.h"
#include "apps/gpt/json_object.h"
#include "apps/gpt/unicode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/input_file.h"
#include "lockstep/core/json.h"

namespace lockstep::gpt {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 20;     // of a vocabulary
constexpr std::uint64_t kMaxMerges = std::uint64_t{64} << 20;  // bytes of a list of merges

bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// The character that stands for each byte in the files: itself if it is printable in Latin-1, else one from U+0100 on.
const std::array<char32_t, 256>& characters_of_bytes() {
  static const std::array<char32_t, 256> table = [] {
    std::array<char32_t, 256> characters{};
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte)
      characters[static_cast<std::size_t>(byte)] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
    return characters;
  }();
  return table;
}

std::string to_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const char32_t c = characters_of_bytes()[static_cast<unsigned char>(byte)];
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      text += static_cast<char>(0xC0 | c >> 6);
      text += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return text;
}

/// False if a character stands for no byte.
bool to_bytes(std::string_view characters, std::string& bytes) {
  static const std::unordered_map<char32_t, char> table = [] {
    std::unordered_map<char32_t, char> map;
    for (int byte = 0; byte < 256; ++byte)
      map[characters_of_bytes()[static_cast<std::size_t>(byte)]] = static_cast<char>(byte);
    return map;
  }();
  bytes.clear();
  while (!characters.empty()) {
    const Character c = first_character(characters);
    const auto found = table.find(c.value);
    if (found == table.end()) return false;
    bytes += found->second;
    characters.remove_prefix(c.bytes);
  }
  return true;
}

std::vector<std::string> read_vocabulary(const std::string& path, std::int32_t& end_of_text) {
  const JsonObject object = JsonObject::read(path, "[tokenizer]");
  const nlohmann::json& json = object.json();
  LOCKSTEP_CHECK(!json.empty(), "[tokenizer] '{}' holds no tokens", path);
  std::vector<std::string> bytes;
  for (const auto& [name, number] : json.items()) {
    const std::int64_t token = number.is_number_integer() ? number.get<std::int64_t>() : -1;
    LOCKSTEP_CHECK(token >= 0 && token < kMaxTokens,
                   "[tokenizer] '{}': token '{}' has the number {}; expected a whole one from 0 to {}", path, name,
                   describe_json(number), kMaxTokens - 1);
    const auto at = static_cast<std::size_t>(token);
    if (at >= bytes.size()) bytes.resize(at + 1);
    LOCKSTEP_CHECK(bytes[at].empty(), "[tokenizer] '{}': number {} comes twice", path, token);
    if (name == Tokenizer::kEndOfText) {
      bytes[at] = name;
      end_of_text = static_cast<std::int32_t>(token);
    } else if (!to_bytes(name, bytes[at]) || bytes[at].empty()) {
      bytes[at] = name;  // a mark that is no text, such as "<pad>"
    }
  }
  return bytes;
}

}  // namespace

Tokenizer Tokenizer::from_files(const std::string& vocabulary, const std::string& merges) {
  Tokenizer tokenizer;
  tokenizer.bytes_ = read_vocabulary(vocabulary, tokenizer.end_of_text_);
  std::unordered_map<std::string_view, std::int32_t> tokens;
  for (std::size_t i = 0; i < tokenizer.bytes_.size(); ++i)
    if (static_cast<std::int32_t>(i) != tokenizer.end_of_text_)
      tokens.emplace(tokenizer.bytes_[i], static_cast<std::int32_t>(i));

  const std::string text = read_input_file(merges, "[tokenizer]", kMaxMerges);
  std::int64_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (++line_number == 1 && line.starts_with("#version")) continue;
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    std::string left, right;
    const bool two = space != std::string_view::npos && to_bytes(line.substr(0, space), left) &&
                     to_bytes(line.substr(space + 1), right);
    const auto a = tokens.find(left), b = tokens.find(right), both = tokens.find(left + right);
    LOCKSTEP_CHECK(two && a != tokens.end() && b != tokens.end() && both != tokens.end(),
                   "[tokenizer] '{}', line {}: expected two tokens that make a third one of the vocabulary, found '{}'",
                   merges, line_number, line);
    const Pair pair{a->second, b->second};
    const auto rank = static_cast<std::int32_t>(tokenizer.merge_list_.size());
    if (tokenizer.merges_.try_emplace(pair, Merge{rank, both->second}).second) tokenizer.merge_list_.push_back(pair);
  }
  tokenizer.index_bytes();
  return tokenizer;
}

Tokenizer Tokenizer::from_folder(const std::string& folder) {
  return from_files(folder + "/vocab.json", folder + "/merges.txt");
}

Tokenizer Tokenizer::of_bytes(std::string_view text) {
  std::array<bool, 256> seen{};
  for (const char byte : text) seen[static_cast<unsigned char>(byte)] = true;
  Tokenizer tokenizer;
  for (std::size_t byte = 0; byte < seen.size(); ++byte)
    if (seen[byte]) tokenizer.bytes_.emplace_back(1, static_cast<char>(byte));
  LOCKSTEP_CHECK(!tokenizer.bytes_.empty(), "[tokenizer] the text is empty");
  tokenizer.index_bytes();
  return tokenizer;
}

void Tokenizer::index_bytes() {
  token_of_byte_.assign(256, -1);
  for (std::size_t i = 0; i < bytes_.size(); ++i)
    if (bytes_[i].size() == 1) token_of_byte_[static_cast<unsigned char>(bytes_[i][0])] = static_cast<std::int32_t>(i);
}

std::vector<std::int32_t> Tokenizer::encode_word(std::string_view word) const {
  std::vector<std::int32_t> tokens;
  for (const char byte : word) {
    const std::int32_t token = token_of_byte_[static_cast<unsigned char>(byte)];
    LOCKSTEP_CHECK(token >= 0, "[tokenizer] byte 0x{:02x} of '{}' has no token in this vocabulary of {}",
                   static_cast<unsigned char>(byte), word.substr(0, 40), size());
    tokens.push_back(token);
  }
  while (tokens.size() > 1) {
    const Merge* best = nullptr;
    Pair pair;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = merges_.find({tokens[i], tokens[i + 1]});
      if (found == merges_.end() || (best && best->rank <= found->second.rank)) continue;
      best = &found->second;
      pair = found->first;
    }
    if (!best) break;
    std::size_t to = 0;
    for (std::size_t from = 0; from < tokens.size(); ++from) {
      const bool here = from + 1 < tokens.size() && tokens[from] == pair.first && tokens[from + 1] == pair.second;
      tokens[to++] = here ? best->result : tokens[from];
      if (here) ++from;
    }
    tokens.resize(to);
  }
  return tokens;
}

void Tokenizer::encode_plain(std::string_view text,
                             std::unordered_map<std::string_view, std::vector<std::int32_t>>& known,
                             std::vector<std::int32_t>& tokens) const {
  if (merges_.empty()) {
    const std::vector<std::int32_t> bytes = encode_word(text);
    tokens.insert(tokens.end(), bytes.begin(), bytes.end());
    return;
  }
  for (const std::string_view word : split_words(text)) {
    auto [at, is_new] = known.try_emplace(word);
    if (is_new) at->second = encode_word(word);
    tokens.insert(tokens.end(), at->second.begin(), at->second.end());
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::unordered_map<std::string_view, std::vector<std::int32_t>> known;
  std::vector<std::int32_t> tokens;
  while (!text.empty()) {
    const std::size_t mark = end_of_text_ >= 0 ? text.find(kEndOfText) : std::string_view::npos;
    encode_plain(text.substr(0, mark), known, tokens);
    if (mark == std::string_view::npos) break;
    tokens.push_back(end_of_text_);
    text.remove_prefix(mark + kEndOfText.size());
  }
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    LOCKSTEP_CHECK(token >= 0 && token < size(), "[tokenizer] {} is no token of a vocabulary of {}", token, size());
    text += bytes_[static_cast<std::size_t>(token)];
  }
  return text;
}

void Tokenizer::save(const std::string& folder) const {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if (bytes_[i].empty()) continue;
    vocabulary[static_cast<std::int32_t>(i) == end_of_text_ ? bytes_[i] : to_characters(bytes_[i])] = i;
  }
  std::string merges = "#version: 0.2\n";
  for (const auto& [left, right] : merge_list_)
    merges += to_characters(bytes_[static_cast<std::size_t>(left)]) + " " +
              to_characters(bytes_[static_cast<std::size_t>(right)]) + "\n";
  write_file(folder + "/vocab.json", vocabulary.dump(0) + "\n");
  write_file(folder + "/merges.txt", merges);
}

}  // namespace lockstep::gpt
