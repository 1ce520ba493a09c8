#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::gpt {

/// Note [Tokenizer]
/// Byte-level byte-pair encoding as GPT-2's (Sennrich, Haddow and Birch, "Neural machine translation of rare words with
/// subword units", 2016; Radford et al., "Language models are unsupervised multitask learners", 2019). A text is split
/// into words; each byte of a word is a token, and neighbouring tokens are merged, the pair that stands first in the
/// list of merges before all others, until no pair is in the list. Files are those of transformers: vocab.json has each
/// token's number, merges.txt the pairs; both write a byte as a printable character. Without merges a token is a byte:
/// a character-level model of an ASCII text.
class Tokenizer {
 public:
  /// The one token that is text to people and a mark to models: the end of a document.
  static constexpr std::string_view kEndOfText = "<|endoftext|>";

  /// Throws Error naming file and place for what cannot be read or does not fit together.
  static Tokenizer from_files(const std::string& vocabulary, const std::string& merges);
  /// vocab.json and merges.txt of a folder.
  static Tokenizer from_folder(const std::string& folder);
  /// A token for each byte that occurs in the text, in their order, and no merges.
  static Tokenizer of_bytes(std::string_view text);

  /// Throws Error, naming the byte, if a byte of the text has no token. kEndOfText is one token if there is one.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// The bytes of the tokens. Throws Error for a number that is no token.
  std::string decode(std::span<const std::int32_t> tokens) const;

  /// Numbers of tokens are below this.
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }
  /// Writes vocab.json and merges.txt.
  void save(const std::string& folder) const;

 private:
  using Pair = std::pair<std::int32_t, std::int32_t>;
  struct PairHash {
    std::size_t operator()(const Pair& pair) const {
      return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32 |
                                        static_cast<std::uint32_t>(pair.second));
    }
  };
  struct Merge {
    std::int32_t rank;
    std::int32_t result;
  };

  void index_bytes();
  void encode_plain(std::string_view text, std::unordered_map<std::string_view, std::vector<std::int32_t>>& known,
                    std::vector<std::int32_t>& tokens) const;
  std::vector<std::int32_t> encode_word(std::string_view word) const;

  std::vector<std::string> bytes_;           // of each token; empty: there is no such token
  std::vector<std::int32_t> token_of_byte_;  // -1: none
  std::vector<Pair> merge_list_;             // in order
  std::unordered_map<Pair, Merge, PairHash> merges_;
  std::int32_t end_of_text_ = -1;
};

/// The words of a text, as GPT-2 splits it: contractions, runs of letters, of numbers, of other characters (each with a
/// space before them), and spaces.
std::vector<std::string_view> split_words(std::string_view text);

}  // namespace lockstep::gpt
