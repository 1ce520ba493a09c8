#pragma once

// The kernels of products of few rows by a matrix that is stored by columns: it is transposed in registers, nothing is
// packed. See micro_kernel_body.h, which includes this after the description of a vector.

#include "lockstep/core/cpu/gemm/few_rows_body.h"
#include "lockstep/core/cpu/gemm/finish_body.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// The most rows for which a turning kernel reads rows of memory by lines of the cache.
template <typename V>
constexpr int turning_lines() {
  return piece<V>() == 64 / sizeof(typename V::T) ? 4 : 0;
}

// For two and more rows, but few, and b stored by columns: nothing is packed.
template <typename V, int kRows, int kVectors, bool kByRows>
void turning_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes, kTurn = V::kTurn, kGroups = kVectors * kLanes / kTurn, kRowGroups = (kRows + 3) / 4;
  constexpr int kLine = 64 / sizeof(T), kFarAhead = 3 * kLine;
  const std::int64_t b_step = tile.b_step, k = tile.k;
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  Vector sum[kVectors][kRows];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) sum[v][i] = V::zero();
  const T* a[kRowGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kRowGroups; ++g) a[g] = apart(tile.a + 4 * g * a_row);
  const T* b[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) b[g] = apart(tile.b + g * kTurn * b_step);
  std::int64_t p = 0;
  if constexpr (kRows <= turning_lines<V>()) {
    // Vector by vector a line of the cache of each row: few lines are in use at a time, which matters where rows of
    // memory share places of a cache.
    const bool crowded = b_step * static_cast<std::int64_t>(sizeof(T)) % 2048 == 0;
    const std::int64_t end = crowded ? k : 0;
#pragma GCC unroll 1
    for (; p + kLine <= end; p += kLine) {
      const T* first = tile.b + p;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Vector x[kLine];
        turn_piece<V>(first, b_step, x);
#pragma GCC unroll 16
        for (int r = 0; r < kLine; ++r)
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i)
            sum[v][i] = V::fused(V::broadcast(a[0] + i * a_row + r * a_step), x[r], sum[v][i]);
        first += kLanes * b_step;
        first = apart(first);
      }
      a[0] += kLine * a_step;
    }
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) b[g] += p;
  }
  std::int64_t row = 0;  // of each group, to prefetch
#pragma GCC unroll 1
  for (; p + kTurn <= k; p += kTurn, row = row == 3 * b_step ? 0 : row + b_step) {
    if (tile.b_is_slow)
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) __builtin_prefetch(b[g] + kFarAhead + row);
    Vector x[kVectors][kTurn];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) V::turn(b + v * (kLanes / kTurn), b_step, x[v]);
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) b[g] += kTurn;
#pragma GCC unroll 4
    for (int r = 0; r < kTurn; ++r) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Vector y = V::broadcast(a[i / 4] + i % 4 * a_row + (kByRows ? r : 0));
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[v][i] = V::fused(y, x[v][r], sum[v][i]);
      }
      if constexpr (!kByRows)
#pragma GCC unroll 4
        for (int g = 0; g < kRowGroups; ++g) a[g] += a_step;
    }
    if constexpr (kByRows)
#pragma GCC unroll 4
      for (int g = 0; g < kRowGroups; ++g) a[g] += kTurn;
  }
  Vector sums[kRows * kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i * kVectors + v] = sum[v][i];
  for (; p < k; ++p)  // fewer than kTurn
    for (int v = 0; v < kVectors; ++v) {
      T lines[kLanes];
      for (int j = 0; j < kLanes; ++j) lines[j] = tile.b[(v * kLanes + j) * b_step + p];
      const Vector x = V::load(lines);
      for (int i = 0; i < kRows; ++i) {
        Vector& s = sums[i * kVectors + v];
        s = V::fused(V::broadcast(tile.a + i * a_row + p * a_step), x, s);
      }
    }
  finish<V>(tile, sums, kRows, kVectors, 0);
}

// Two vectors of columns and a line of the cache of each at a time, so that each element of a serves two sums. k is at
// least a line long; the last line lies over its neighbour, of which it leaves out what was summed.
template <typename V, int kRows, bool kByRows>
void turning_pair_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes, kTurn = V::kTurn, kLine = 64 / sizeof(T), kRowGroups = (kRows + 3) / 4;
  constexpr int kApart = 8;  // rows of memory that are addressed from the same pointer
  constexpr int kPointers = kLanes / kApart, kFarAhead = 3 * kLine;
  const std::int64_t b_step = tile.b_step, k = tile.k;
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  Vector sum[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = V::zero();
  const T* a[kRowGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kRowGroups; ++g) a[g] = apart(tile.a + 4 * g * a_row);
  alignas(64) T turned[kLine * kLanes];
  // The steps of a line at b from `first` on.
  const auto line = [&](const T* from, int first) __attribute__((always_inline)) {
    const T* b[kPointers];
#pragma GCC unroll 4
    for (int g = 0; g < kPointers; ++g) b[g] = apart(from + g * kApart * b_step);
    const auto turn = [&](Vector * x) __attribute__((always_inline)) {
      const T* group[kLanes / kTurn];
#pragma GCC unroll 8
      for (int g = 0; g < kLanes / kTurn; ++g) group[g] = b[g * kTurn / kApart] + g * kTurn % kApart * b_step;
      V::turn(group, b_step, x);
#pragma GCC unroll 4
      for (int g = 0; g < kPointers; ++g) b[g] += kTurn;
    };
#pragma GCC unroll 1
    for (T* to = turned; to < turned + kLine * kLanes; to += kTurn * kLanes) {
      Vector x[kTurn];
      turn(x);
#pragma GCC unroll 4
      for (int r = 0; r < kTurn; ++r) V::store(to + r * kLanes, x[r]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < kPointers; ++g) b[g] = apart(b[g] + kLanes * b_step - kLine);
#pragma GCC unroll 1
    for (int t = 0; t < kLine; t += kTurn) {
      Vector x[kTurn];
      turn(x);
#pragma GCC unroll 4
      for (int r = 0; r < kTurn; ++r) {
        if (t + r < first) continue;
        const Vector low = V::load(turned + (t + r) * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const Vector y = V::broadcast(a[i / 4] + i % 4 * a_row);
          sum[i][0] = V::fused(y, low, sum[i][0]);
          sum[i][1] = V::fused(y, x[r], sum[i][1]);
        }
#pragma GCC unroll 4
        for (int g = 0; g < kRowGroups; ++g) a[g] += a_step;
      }
    }
  };
  std::int64_t p = 0;
#pragma GCC unroll 1
  for (; p + kLine <= k; p += kLine) {
    if (tile.b_is_slow) {
      const T* ask = tile.b + p + kFarAhead;
      for (int j = 0; j < 2 * kLanes; ++j, ask += b_step) __builtin_prefetch(ask);
    }
    line(tile.b + p, 0);
  }
  if (p < k) line(tile.b + k - kLine, static_cast<int>(p + kLine - k));
  finish_in_registers<V>(tile, 0, sum);
}

// Enough chains to hide the latency of one.
template <typename V, int kRows>
constexpr void fill_turning(MicroKernels<typename V::T>& kernels) {
  constexpr int kVectors = kRows < kPairedRows ? 2 : 1;
  kernels.turning[0][kVectors][kRows] = turning_kernel<V, kRows, kVectors, false>;
  kernels.turning[1][kVectors][kRows] = turning_kernel<V, kRows, kVectors, true>;
  kernels.turning_vectors[kRows] = kVectors;
  if constexpr (kRows >= kPairedRows && sizeof(typename V::Vector) == 64) {
    kernels.turning[0][2][kRows] = turning_pair_kernel<V, kRows, false>;
    kernels.turning[1][2][kRows] = turning_pair_kernel<V, kRows, true>;
    kernels.turning_vectors[kRows] = 2;
  }
  if constexpr (kRows > 2) fill_turning<V, kRows - 1>(kernels);
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
