#pragma once

// Eight neighbouring positions of a correlation's result: where they read, and their sums for few rows. For .cpp files
// only.

#include <algorithm>
#include <array>
#include <cstdint>

#include "lockstep/core/cpu/vec8.h"

namespace lockstep::cpu::conv_detail {

struct Eight {
  enum class Kind : unsigned char { run, two_runs, scattered } kind;
  std::int32_t first, second;         // two_runs: lane j reads at first + j, or second + j
  IntVec8 from_second;                // lanes that do
  std::array<std::int32_t, 8> bases;  // scattered; -1: no position
};

inline Eight eight_of(const std::int32_t* bases) {
  Eight e{};
  std::copy_n(bases, 8, e.bases.begin());
  int split = 1;
  while (split < 8 && bases[split] == bases[0] + split) ++split;
  int stop = split;
  while (stop < 8 && bases[stop] == bases[split] + stop - split) ++stop;
  e.first = bases[0];
  e.second = split < 8 ? bases[split] - split : bases[0];
  for (int j = 0; j < 8; ++j) e.from_second[j] = j >= split ? -1 : 0;
  const bool all = bases[7] >= 0;
  e.kind = all && split == 8                   ? Eight::Kind::run
           : all && stop == 8 && e.second >= 0 ? Eight::Kind::two_runs
                                               : Eight::Kind::scattered;
  return e;
}

inline constexpr std::int64_t kFewRows = 3;  // whose sums, with the weights, stay in registers

/// Steps of a block of k for up to kFewRows rows, which read the image as it lies: packing a panel for them would cost
/// more than their sums. Chains and what follows them are those of a micro-kernel's tile.
struct FewRows {
  const float* images;
  const std::int32_t* offsets;  // of each step
  std::int64_t k;
  const float* weights;  // of row r at step p: weights[p * step + r]
  std::int64_t step;
  float* out;
  std::int64_t out_stride;
  bool adds;          // to what `out` holds
  const float* bias;  // of each row; may be null
  bool relu;
};

template <int R, int V>
void few_rows(const FewRows& f, const Eight* eights, std::int64_t column) {
  Vec8 sum[R][V];
  const float* from[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    from[v] = f.images + eights[v].first;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r][v] = Vec8{};
  }
  const float* weights = f.weights;
  for (std::int64_t p = 0; p < f.k; ++p, weights += f.step) {
    const std::int64_t at = f.offsets[p];
    Vec8 factor[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) factor[r] = broadcast8(weights[r]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Vec8 x = load8(from[v] + at);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][v] = fma8(factor[r], x, sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* const to = f.out + r * f.out_stride + column + 8 * v;
      Vec8 value = f.adds ? load8(to) + sum[r][v] : sum[r][v];
      if (f.bias) value += broadcast8(f.bias[r]);
      store8(to, f.relu ? (value < Vec8{} ? Vec8{} : value) : value);
    }
}

template <int R>
void few_rows(const FewRows& f, const Eight* eights, std::int64_t count) {
  std::int64_t g = 0;
  for (; g + 4 <= count; g += 4) few_rows<R, 4>(f, eights + g, 8 * g);
  if (count - g == 3) few_rows<R, 3>(f, eights + g, 8 * g);
  if (count - g == 2) few_rows<R, 2>(f, eights + g, 8 * g);
  if (count - g == 1) few_rows<R, 1>(f, eights + g, 8 * g);
}

/// For `count` times eight positions, each of Kind::run, whose results are neighbours in a row of `out`.
inline void few_rows(const FewRows& f, std::int64_t rows, const Eight* eights, std::int64_t count) {
  if (rows == 1) return few_rows<1>(f, eights, count);
  if (rows == 2) return few_rows<2>(f, eights, count);
  few_rows<3>(f, eights, count);
}

}  // namespace lockstep::cpu::conv_detail
