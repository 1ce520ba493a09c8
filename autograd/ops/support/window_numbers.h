#pragma once

// A bound for the numbers that place windows on an image. For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "lockstep/core/check.h"

namespace lockstep {

/// Throws Error naming `op` if a kernel's size, stride, padding or dilation is so large that sums and products of them
/// would not be sizes any more.
inline void check_window_numbers(const char* op, std::initializer_list<std::int64_t> numbers) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  LOCKSTEP_CHECK(std::max(numbers) <= kMost,
                 "[{}] expected kernel sizes, strides, paddings and dilations of at most {}, found {}", op, kMost,
                 std::max(numbers));
}

}  // namespace lockstep
