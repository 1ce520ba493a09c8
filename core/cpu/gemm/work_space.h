#pragma once

// Memory for what a product packs. For .cpp files only.

#include <cstdint>

#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/factories.h"

namespace lockstep::cpu::gemm_detail {

// Work space, on the stack if it is small.
template <typename T>
struct Space {
  explicit Space(std::int64_t size) {
    if (size <= kLocalElements) return;
    large = empty({size}, {.dtype = dtype_of<T>});
    data = large.data<T>();
  }
  alignas(64) T local[kLocalElements];
  Tensor large;
  T* data = local;
};

}  // namespace lockstep::cpu::gemm_detail
