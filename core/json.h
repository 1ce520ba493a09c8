#pragma once

// For .cpp files of targets that link nlohmann_json.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lockstep/core/check.h"

// Note [JSON from outside]
// Files of JSON come from anywhere. The parser takes any depth, but what writes or compares a value that it made calls
// itself once a level, and a small file of brackets would exhaust the stack. So every text from outside goes through
// parse_json(), which looks at the depth first, and every value that a message shows through describe_json().

namespace lockstep {

/// The deepest nesting that is read. What these programs read nests three or four deep.
constexpr int kJsonDepth = 32;
/// The largest file of JSON that is read: a vocabulary of a million tokens has a third of that.
constexpr std::size_t kJsonBytes = std::size_t{64} << 20;

/// Where `text` nests more deeply than kJsonDepth; npos: nowhere.
inline std::size_t place_of_deep_json(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kJsonDepth) return i;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return std::string_view::npos;
}

/// Parses a text that stands at byte `offset` of a file. Throws Error, with `where` ("[config] 'config.json'") in front
/// and the place in the file, for what is nested too deeply, is no JSON, or holds a number too large for any type.
template <typename Json = nlohmann::json>
Json parse_json(std::string_view text, std::string_view where, std::size_t offset = 0) {
  const std::size_t deep = place_of_deep_json(text);
  LOCKSTEP_CHECK(deep == std::string_view::npos, "{} is nested too deeply at offset {}; expected at most {} levels",
                 where, offset + deep, kJsonDepth);
  try {
    return Json::parse(text);
  } catch (const typename Json::parse_error& error) {
    detail::throw_error(fmt::format("{} is not valid JSON, at offset {}; the file is damaged or of another format",
                                    where, offset + error.byte));
  } catch (const typename Json::out_of_range&) {
    detail::throw_error(fmt::format("{} holds a number too large for any number of JSON; the file is damaged", where));
  }
}

/// For a message: a number, truth value or short string as it stands in the file, of others what they are.
template <typename Json>
std::string describe_json(const Json& value) {
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  constexpr std::size_t kShown = 60;
  if (value.is_string() && value.template get_ref<const typename Json::string_t&>().size() > kShown)
    return fmt::format("a string of {} bytes", value.template get_ref<const typename Json::string_t&>().size());
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
