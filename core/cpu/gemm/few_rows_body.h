#pragma once

// The kernels of products of few rows; see micro_kernel_body.h, which includes this after the description of a vector.

#include <algorithm>

#include "lockstep/core/cpu/gemm/finish_body.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// A pointer of which the compiler does not know that it is another one plus an offset, so that it keeps no register for
// each sum of the two.
template <typename T>
[[gnu::always_inline]] inline const T* apart(const T* p) {
  asm("" : "+r"(p));
  return p;
}

// lane j of x[p] is from[j * stride + p], for p below piece<V>()
template <typename V>
constexpr int piece() {
  if constexpr (requires { V::turn_square; })
    return V::kLanes;
  else
    return V::kTurn;
}
template <typename V>
[[gnu::always_inline]] inline void turn_piece(const typename V::T* from, std::int64_t stride, typename V::Vector* x) {
  if constexpr (requires { V::turn_square; }) {
    V::turn_square(from, stride, x);
  } else {
    const typename V::T* group[V::kLanes / V::kTurn];
#pragma GCC unroll 4
    for (int g = 0; g < V::kLanes / V::kTurn; ++g) group[g] = from + g * V::kTurn * stride;
    V::turn(group, stride, x);
  }
}

// For few rows and many columns of b as it lies: some rows of b at a time, along which memory is read in order. The
// sums are in tile.sums, whole vectors of a row of the tile side by side.
template <typename V, int kRows, bool kByRows>
void streaming_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes;
  // Registers hold kRows * kSteps elements of a, beside the sums. More steps mean that these are stored less often; of
  // more rows of b than eight at a time, those that share places in a cache push each other out.
  constexpr int kSteps = std::min(8, (kLanes * sizeof(T) == 64 ? 16 : 8) / kRows);
  constexpr int kRowsAhead = kSteps * kRows > 8 ? 2 : 8;  // of b, between what is in use and what is asked for
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  const std::int64_t vectors = (tile.columns + kLanes - 1) / kLanes, last = tile.columns - (vectors - 1) * kLanes;
  const std::int64_t width = vectors * kLanes;
  const auto steps = [&]<int kCount>(std::int64_t p) __attribute__((always_inline)) {
    Vector y[kCount][kRows];
#pragma GCC unroll 8
    for (int q = 0; q < kCount; ++q)
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) y[q][i] = V::broadcast(tile.a + i * a_row + (p + q) * a_step);
    const T* const b = tile.b + p * tile.b_step;
    const auto vector = [&](std::int64_t j, auto load) __attribute__((always_inline)) {
      Vector sum[kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[i] = p == 0 ? V::zero() : V::load(tile.sums + i * width + j);
#pragma GCC unroll 8
      for (int q = 0; q < kCount; ++q) {
        const Vector x = load(b + q * tile.b_step + j);
        if (kRows > 2 && j * sizeof(T) % 64 == 0) __builtin_prefetch(b + (q + kRowsAhead) * tile.b_step + j);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) sum[i] = V::fused(y[q][i], x, sum[i]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) V::store(tile.sums + i * width + j, sum[i]);
    };
#pragma GCC unroll 2
    for (std::int64_t j = 0; j < width - kLanes; j += kLanes)
      vector(
          j, [](const T* from) __attribute__((always_inline)) { return V::load(from); });
    vector(
        width - kLanes, [last](const T* from) __attribute__((always_inline)) { return V::load_first(from, last); });
  };
  std::int64_t p = 0;
#pragma GCC unroll 1
  for (; p + kSteps <= tile.k; p += kSteps) steps.template operator()<kSteps>(p);
#pragma GCC unroll 1
  for (; p < tile.k; ++p) steps.template operator()<1>(p);
  finish<V>(tile, reinterpret_cast<const Vector*>(tile.sums), kRows, static_cast<int>(vectors), 0);
}

template <typename V, int kRows>
constexpr void fill_streaming(MicroKernels<typename V::T>& kernels) {
  kernels.streaming[0][kRows] = streaming_kernel<V, kRows, false>;
  kernels.streaming[1][kRows] = streaming_kernel<V, kRows, true>;
  if constexpr (kRows > 1) fill_streaming<V, kRows - 1>(kernels);
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
