#pragma once

// The micro-kernels, written once over a description of a vector: included by the file of each instruction set, after
// the description. Note [One instruction set a file]
// Code of these files must not be shared with others by the linker: a copy that was compiled for AVX-512 would be taken
// where AVX2 is all there is. So everything here is in an unnamed namespace, and nothing of the standard library is used
// but fixed-width integers. They are compiled without contraction: every fused multiply-add is spelled out.
//
// A description V of vectors has
//   T, Vector, kLanes              element, vector, elements of a vector
//   zero(), broadcast(p)           all lanes 0, or *p
//   load(p), store(p, v)           from and to any address
//   load_first(p, n), store_first(p, v, n)   the first n lanes, 0 < n <= kLanes, touching no other memory
//   add(x, y), multiply(x, y)      rounded each by itself
//   fused(x, y, z)                 x * y + z, rounded once
//   positive(x)                    x < 0 ? 0 : x, so NaN and -0 stay

#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// The end of a tile, from sums in memory: [rows][vectors][kLanes].
template <typename V>
void finish(const Tile<typename V::T>& tile, const typename V::Vector* sums, int rows, int vectors) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  const Vector alpha = V::broadcast(&tile.alpha), beta = V::broadcast(&tile.beta);
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t at = v * V::kLanes;
    const std::int64_t lanes = tile.columns - at < V::kLanes ? tile.columns - at : V::kLanes;
    const Vector bias = tile.bias ? V::load_first(tile.bias + at, lanes) : V::zero();
    for (int i = 0; i < rows; ++i) {
      T* const out = tile.out + i * tile.out_stride + at;
      Vector value = sums[i * vectors + v];
      if (tile.alpha != T(1)) value = V::multiply(alpha, value);
      if (tile.beta != T(0)) {
        const Vector old = V::load_first(out, lanes);
        value = V::add(tile.beta == T(1) ? old : V::multiply(beta, old), value);
      }
      if (tile.bias) value = V::add(value, bias);
      if (tile.row_bias) value = V::add(value, V::broadcast(tile.row_bias + i));
      if (tile.relu) value = V::positive(value);
      V::store_first(out, value, lanes);
    }
  }
}

template <typename V, int kRows, int kVectors, bool kByRows>
void micro_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes;
  const T* a = tile.a;
  const T* b = tile.b;
  const std::int64_t b_step = tile.b_step;
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(tile.out + i * tile.out_stride, 1);
    __builtin_prefetch(tile.out + i * tile.out_stride + tile.columns - 1, 1);
  }
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = V::zero();
#pragma GCC unroll 2
  for (std::int64_t p = tile.k; p > 0; --p) {
    Vector x[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) x[v] = V::load(b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector y = V::broadcast(a + i * a_row);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = V::fused(y, x[v], sum[i][v]);
    }
    a += a_step;
    b += b_step;
  }

  // Most tiles are whole and only stored or added.
  const bool plain = tile.columns == kVectors * kLanes && tile.alpha == T(1) && !tile.bias && !tile.row_bias && !tile.relu;
  if (plain && (tile.beta == T(0) || tile.beta == T(1))) {
    const bool add = tile.beta != T(0);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      T* const out = tile.out + i * tile.out_stride;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        V::store(out + v * kLanes, add ? V::add(V::load(out + v * kLanes), sum[i][v]) : sum[i][v]);
    }
    return;
  }
  Vector sums[kRows * kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i * kVectors + v] = sum[i][v];
  finish<V>(tile, sums, kRows, kVectors);
}

// Registers hold the sums, one vector of b or two, and one element of a.
constexpr int most_rows(int registers, int vectors) {
  const int rows = (registers - (vectors < 3 ? vectors : 2) - 1) / vectors;
  return rows > kMaxRows ? kMaxRows : rows;
}

template <typename V, int kRegisters, int kVectors, int kRows>
constexpr void fill(MicroKernels<typename V::T>& kernels) {
  if constexpr (kRows > 0) {
    kernels.table[0][kVectors][kRows] = micro_kernel<V, kRows, kVectors, false>;
    kernels.table[1][kVectors][kRows] = micro_kernel<V, kRows, kVectors, true>;
    fill<V, kRegisters, kVectors, kRows - 1>(kernels);
  } else if constexpr (kVectors > 1) {
    kernels.rows[kVectors - 1] = most_rows(kRegisters, kVectors - 1);
    fill<V, kRegisters, kVectors - 1, most_rows(kRegisters, kVectors - 1)>(kernels);
  }
}

template <typename V, int kRegisters>
constexpr MicroKernels<typename V::T> make_micro_kernels() {
  MicroKernels<typename V::T> kernels{};
  kernels.lanes = V::kLanes;
  kernels.rows[kMaxVectors] = most_rows(kRegisters, kMaxVectors);
  fill<V, kRegisters, kMaxVectors, most_rows(kRegisters, kMaxVectors)>(kernels);
  return kernels;
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
