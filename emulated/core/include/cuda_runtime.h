#pragma once

// CUDA C++ for a host compiler: what kernels may use on the emulated device; see Note [Emulated device].

#include <cmath>
#include <cstring>
#include <type_traits>

#include "cuda_runtime_api.h"
#include "lockstep/emulated/core/execution.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// A block runs on one thread of the host, so what is static there is the block's.
#define __shared__ static thread_local

inline void __syncthreads() {
  lockstep::cuda::emulated::block_barrier();
}
inline void __syncwarp(unsigned = 0xffffffffu) {
  lockstep::cuda::emulated::warp_exchange(0);
}

namespace lockstep::cuda::emulated {
template <typename T>
T warp_read(T value, int lane) {
  static_assert(sizeof(T) <= 8);
  unsigned long long word = 0;
  std::memcpy(&word, &value, sizeof(T));
  const unsigned long long* words = warp_exchange(word);
  const int own = this_thread().lane();
  std::memcpy(&value, &words[lane >= 0 && lane < kWarp ? lane : own], sizeof(T));
  return value;
}
}  // namespace lockstep::cuda::emulated

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return lockstep::cuda::emulated::warp_read(value, lockstep::cuda::emulated::this_thread().lane() ^ mask);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
  return lockstep::cuda::emulated::warp_read(value,
                                             lockstep::cuda::emulated::this_thread().lane() + static_cast<int>(delta));
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  return lockstep::cuda::emulated::warp_read(value,
                                             lockstep::cuda::emulated::this_thread().lane() - static_cast<int>(delta));
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return lockstep::cuda::emulated::warp_read(value, lane);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const unsigned long long* words = lockstep::cuda::emulated::warp_exchange(predicate ? 1u : 0u);
  unsigned result = 0;
  for (int lane = 0; lane < lockstep::cuda::emulated::kWarp; ++lane) result |= words[lane] ? 1u << lane : 0u;
  return result;
}

inline int __popc(unsigned word) {
  return __builtin_popcount(word);
}
inline void __threadfence() {}
template <typename T>
T __ldg(const T* data) {
  return *data;
}
