#pragma once

// Copies from global to shared memory that go on while a block computes. For .cu files only.

#include <cstdint>
#include <cstring>

namespace lockstep::cuda {

/// Begins to copy kBytes, 4 or 16, both sides aligned so; zeros if not `inside`, then `from` is not read.
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from, bool inside) {
  static_assert(kBytes == 4 || kBytes == 16);
#if defined(__CUDACC__)
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int count = inside ? kBytes : 0;
  if constexpr (kBytes == 16)  // by way of the second-level cache alone
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(count) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(at), "l"(from), "r"(count) : "memory");
#else
  if (inside)
    std::memcpy(to, from, kBytes);
  else
    std::memset(to, 0, kBytes);
#endif
}

/// Waits for all copies that this thread has begun. Others see them after the next barrier.
__device__ inline void wait_for_copies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

}  // namespace lockstep::cuda
