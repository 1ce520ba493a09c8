#pragma once

// Indices in kernels. For .cu files only.

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::cuda {

/// a / b, neither negative. 64-bit division takes several times as long as 32-bit division, which mostly does.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  return ((a | b) >> 31) == 0 ? static_cast<std::int64_t>(static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b))
                              : a / b;
}

}  // namespace lockstep::cuda
