#pragma once

// What is done to a tile's sums; see micro_kernel_body.h, which includes this after the description of a vector.

#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// Loads and stores the vectors of a row of a tile, the last of which has `last` lanes.
template <typename V, int kVectors>
[[gnu::always_inline]] inline typename V::Vector load_of_row(const typename V::T* row, int v, std::int64_t last) {
  const typename V::T* const at = row + v * V::kLanes;
  return v < kVectors - 1 || last == V::kLanes ? V::load(at) : V::load_first(at, last);
}
template <typename V, int kVectors>
[[gnu::always_inline]] inline void store_of_row(typename V::T* row, int v, std::int64_t last,
                                                typename V::Vector value) {
  typename V::T* const at = row + v * V::kLanes;
  if (v < kVectors - 1 || last == V::kLanes)
    V::store(at, value);
  else
    V::store_first(at, value, last);
}

// change(i, v, sum) for each vector of a tile, in registers.
template <int kRows, int kVectors, typename Vector, typename Change>
[[gnu::always_inline]] inline void for_each_sum(Vector (&sum)[kRows][kVectors], Change&& change) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) change(i, v, sum[i][v]);
}

// Whether they are only stored. Of short chains that is asked first: all other questions take as long as the sums.
template <typename T>
bool is_plain(const Tile<T>& tile) {
  return tile.alpha == T(1) && tile.beta == T(0) && !tile.bias && !tile.row_bias && !tile.relu;
}

// Stores the sums of a tile `column` columns behind tile.out.
template <typename V, int kRows, int kVectors>
[[gnu::always_inline]] inline void store_sums(const Tile<typename V::T>& tile, std::int64_t column,
                                              typename V::Vector (&sum)[kRows][kVectors]) {
  using Vector = typename V::Vector;
  typename V::T* const out = tile.out + column;
  const std::int64_t stride = tile.out_stride, last = tile.columns - (kVectors - 1) * V::kLanes;
  if (last == V::kLanes)
    for_each_sum(
        sum, [&](int i, int v, Vector& s)
                 __attribute__((always_inline)) { V::store(out + i * stride + v * V::kLanes, s); });
  else
    for_each_sum(
        sum, [&](int i, int v, Vector& s)
                 __attribute__((always_inline)) { store_of_row<V, kVectors>(out + i * stride, v, last, s); });
}

// What follows the sums of a tile `column` columns behind tile.out: as finish(), in registers.
template <typename V, int kRows, int kVectors>
[[gnu::always_inline]] inline void finish_in_registers(const Tile<typename V::T>& tile, std::int64_t column,
                                                       typename V::Vector (&sum)[kRows][kVectors]) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  T* const out = tile.out + column;
  const std::int64_t stride = tile.out_stride, last = tile.columns - (kVectors - 1) * V::kLanes;
  if (tile.alpha != T(1)) {
    const Vector alpha = V::broadcast(&tile.alpha);
    for_each_sum(
        sum, [&](int, int, Vector& s) __attribute__((always_inline)) { s = V::multiply(alpha, s); });
  }
  if (tile.beta == T(1)) {
    for_each_sum(
        sum, [&](int i, int v, Vector& s) __attribute__((always_inline)) {
          s = V::add(load_of_row<V, kVectors>(out + i * stride, v, last), s);
        });
  } else if (tile.beta != T(0)) {
    const Vector beta = V::broadcast(&tile.beta);
    for_each_sum(
        sum, [&](int i, int v, Vector& s) __attribute__((always_inline)) {
          s = V::add(V::multiply(beta, load_of_row<V, kVectors>(out + i * stride, v, last)), s);
        });
  }
  if (tile.bias) {
    Vector bias[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bias[v] = load_of_row<V, kVectors>(tile.bias + column, v, last);
    for_each_sum(
        sum, [&](int, int v, Vector& s) __attribute__((always_inline)) { s = V::add(s, bias[v]); });
  }
  if (tile.row_bias)
    for_each_sum(
        sum, [&](int i, int, Vector& s)
                 __attribute__((always_inline)) { s = V::add(s, V::broadcast(tile.row_bias + i)); });
  if (tile.relu)
    for_each_sum(
        sum, [&](int, int, Vector& s) __attribute__((always_inline)) { s = V::positive(s); });
  store_sums<V>(tile, column, sum);
}

// The end of a tile, from sums in memory: [rows][vectors][kLanes]. The tile is `column` columns behind tile.out.
template <typename V>
void finish(const Tile<typename V::T>& tile, const typename V::Vector* sums, int rows, int vectors,
            std::int64_t column) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  const Vector alpha = V::broadcast(&tile.alpha), beta = V::broadcast(&tile.beta);
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t at = v * V::kLanes;
    const std::int64_t lanes = tile.columns - at < V::kLanes ? tile.columns - at : V::kLanes;
    const bool whole = lanes == V::kLanes;  // storing under a mask takes long with AVX2
    const Vector bias = tile.bias ? V::load_first(tile.bias + column + at, lanes) : V::zero();
    for (int i = 0; i < rows; ++i) {
      T* const out = tile.out + i * tile.out_stride + column + at;
      Vector value = sums[i * vectors + v];
      if (tile.alpha != T(1)) value = V::multiply(alpha, value);
      if (tile.beta != T(0)) {
        const Vector old = V::load_first(out, lanes);
        value = V::add(tile.beta == T(1) ? old : V::multiply(beta, old), value);
      }
      if (tile.bias) value = V::add(value, bias);
      if (tile.row_bias) value = V::add(value, V::broadcast(tile.row_bias + i));
      if (tile.relu) value = V::positive(value);
      if (whole)
        V::store(out, value);
      else
        V::store_first(out, value, lanes);
    }
  }
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
