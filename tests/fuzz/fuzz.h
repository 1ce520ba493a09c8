#pragma once

// What the fuzz targets share. A target defines LLVMFuzzerTestOneInput; anything that escapes it but lockstep::Error is
// a finding, and so is every sanitizer's report.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace lockstep::fuzz {

/// A property that holds for every input; a finding where it does not.
inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Runs `body`, which may refuse its input by an Error that says why. True if it did not.
template <typename Body>
bool accepts(Body&& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    require(*error.what() != '\0');
    return false;
  }
}

/// Takes an input apart from the front. What is not there is zero or empty.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool at_end() const { return rest_.empty(); }
  std::uint8_t byte() { return rest_.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(take(1)[0]); }
  std::string_view take(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return take(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace lockstep::fuzz
