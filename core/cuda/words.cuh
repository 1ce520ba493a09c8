#pragma once

// Moving elements of any dtype as words of their size. For .cu files only.

#include <cstdint>

#include "lockstep/core/dispatch.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// Calls f.operator()<Word>() with the unsigned integer of `bytes` bytes: 1, 2, 4 or 8.
template <typename F>
void with_word(std::size_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f.template operator()<std::uint8_t>();
    case 2:
      return f.template operator()<std::uint16_t>();
    case 4:
      return f.template operator()<std::uint32_t>();
    default:
      return f.template operator()<std::uint64_t>();
  }
}

/// What stands in the place of an element that does not exist: NaN, true, or all bits set.
inline std::uint64_t missing_word(DType dtype) {
  return dtype == kBool ? 1 : ~std::uint64_t{0};
}

}  // namespace lockstep::cuda
