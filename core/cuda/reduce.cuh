#pragma once

// Sums, maxima and the like over the threads of a warp or a block, in a fixed order: the same bits in every run. For
// .cu files only; blocks are one-dimensional, of whole warps, and all of their threads take part.

#include <cstring>
#include <type_traits>

#include "lockstep/core/cuda/launch.cuh"

namespace lockstep::cuda {

template <typename C>
struct Add {
  __device__ C operator()(C a, C b) const { return a + b; }
};
/// The larger; NaN if either is.
template <typename C>
struct Max {
  __device__ C operator()(C a, C b) const { return a > b || a != a ? a : b; }
};
template <typename C>
struct Min {
  __device__ C operator()(C a, C b) const { return a < b || a != a ? a : b; }
};

/// N sums at once, for one barrier instead of N: block_reduce(Sums<float, 2>{{a, b}}, Add<Sums<float, 2>>()).
template <typename C, int N>
struct Sums {
  C value[N];
  __device__ friend Sums operator+(Sums a, const Sums& b) {
#pragma unroll
    for (int n = 0; n < N; ++n) a.value[n] += b.value[n];
    return a;
  }
};

/// The value of lane `lane ^ mask`; any type that memcpy may copy, in 4-byte words if it is no number.
template <typename T>
__device__ inline T shuffle_xor(T value, int mask) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
  } else {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int) == 0);
    constexpr int kWords = sizeof(T) / sizeof(int);
    int words[kWords];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
    memcpy(&value, words, sizeof(T));
    return value;
  }
}

/// op over the values of a warp's lanes; every lane gets the result. op(a, b) equals op(b, a) to the bit.
template <typename T, typename Op>
__device__ inline T warp_reduce(T value, Op op) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) value = op(value, shuffle_xor(value, mask));
  return value;
}

/// op over the values of a block's threads; every thread gets the result. May be called again and again.
template <typename T, typename Op>
__device__ inline T block_reduce(T value, Op op) {
  __shared__ T partial[1024 / kWarpSize];
  value = warp_reduce(value, op);
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  if (warps == 1) return value;
  __syncthreads();  // all have read what an earlier call left
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = partial[0];
  for (int w = 1; w < warps; ++w) value = op(value, partial[w]);
  return value;
}

template <typename C>
__device__ inline C warp_sum(C value) {
  return warp_reduce(value, Add<C>());
}
template <typename C>
__device__ inline C block_sum(C value) {
  return block_reduce(value, Add<C>());
}

}  // namespace lockstep::cuda
