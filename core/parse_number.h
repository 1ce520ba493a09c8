#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace lockstep {

/// The number that the whole of `text` is, in decimal and without spaces or a leading '+'; empty if it is none, or one
/// that `Number` cannot hold.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace lockstep
