#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::gpt {

/// What the splitting rule of byte-pair tokenizers tells apart.
enum class CharacterClass : unsigned char { letter, number, space, other };

/// By Unicode's general categories L and N and the property White_Space.
CharacterClass classify(char32_t character);

/// A character of UTF-8 text.
struct Character {
  char32_t value;
  std::size_t bytes;  ///< that it takes in the text
};
/// The first character of `text`, which must not be empty. A byte that begins no valid sequence counts as a character
/// of its own, U+FFFD.
Character first_character(std::string_view text);

}  // namespace lockstep::gpt
