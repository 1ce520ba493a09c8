#include "lockstep/core/cpu/gemm/long_sums.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::gemm_detail {
namespace {

constexpr std::int64_t kMostLong = 8, kMostElements = 16;  // of a side of the result, and of it all
constexpr int kMostRows = 4;                               // at a time

/// Vectors that lie along k, `stride` apart.
struct Rows {
  const float* data;
  std::int64_t stride, count;
};

/// x[p] holds step p of eight blocks, which are `inner` long.
[[gnu::always_inline]] inline void turn_blocks(const float* from, std::int64_t inner, Vec8 (&x)[8]) {
  for (int lane = 0; lane < 8; ++lane) x[lane] = load8(from + lane * inner);
  transpose8(x);
}

/// sums[i * blocks + lane]: the chains of eight blocks of kRows rows, which are `stride` apart, times `column`.
template <int kRows>
void add_blocks(const float* rows, std::int64_t stride, const float* column, std::int64_t inner, std::int64_t blocks,
                float* sums) {
  Vec8 sum[kRows] = {};
  for (std::int64_t p = 0; p < inner; p += 8) {
    Vec8 y[8];
    turn_blocks(column + p, inner, y);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      Vec8 x[8];
      turn_blocks(rows + i * stride + p, inner, x);
#pragma GCC unroll 8
      for (int s = 0; s < 8; ++s) sum[i] = fma8(x[s], y[s], sum[i]);
    }
  }
  for (int i = 0; i < kRows; ++i) store8(sums + i * blocks, sum[i]);
}

}  // namespace

bool has_long_sums(const Gemm<float>& g) {
  const Strided<float> a = strided(g.a, 0), b = strided(g.b, 0);
  return std::max(g.m, g.n) <= kMostLong && g.m * g.n <= kMostElements && g.k >= 9 * kInner && a.column == 1 &&
         b.row == 1 && !g.bias && !g.row_bias && g.activation == Activation::none;
}

void multiply_long_sums(const Gemm<float>& g, std::int64_t index) {
  const Strided<float> a = strided(g.a, index), b = strided(g.b, index);
  Rows rows{a.data, a.row, g.m}, columns{b.data, b.column, g.n};
  const bool turned = g.m < g.n;
  if (turned) std::swap(rows, columns);
  const std::int64_t inner = inner_block(g.k), whole = g.k / inner, blocks = divide_up(g.k, inner);
  std::vector<float> sums(static_cast<std::size_t>(g.m * g.n * blocks));  // [column][row][block]
  const auto add_eight_from = [&](std::int64_t first) {
    const std::int64_t at = first * inner;
    for (std::int64_t j = 0; j < columns.count; ++j)
      for (std::int64_t i = 0; i < rows.count; i += kMostRows) {
        constexpr decltype(&add_blocks<1>) kKernels[] = {add_blocks<1>, add_blocks<2>, add_blocks<3>, add_blocks<4>};
        const std::int64_t some = std::min<std::int64_t>(kMostRows, rows.count - i);
        kKernels[some - 1](rows.data + i * rows.stride + at, rows.stride, columns.data + j * columns.stride + at, inner,
                           blocks, sums.data() + (j * rows.count + i) * blocks + first);
      }
  };
  parallel_for(whole / 8, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) add_eight_from(8 * group);
  });
  if (whole % 8 != 0) add_eight_from(whole - 8);  // over some of those that are there, which it gives once more
  float* const out = g.out + index * g.out_batch_stride;
  for (std::int64_t j = 0; j < columns.count; ++j)
    for (std::int64_t i = 0; i < rows.count; ++i) {
      float* const sum = sums.data() + (j * rows.count + i) * blocks;
      const float *x = rows.data + i * rows.stride, *y = columns.data + j * columns.stride;
      if (whole < blocks) {
        float rest = 0;
        for (std::int64_t p = whole * inner; p < g.k; ++p) rest = std::fma(x[p], y[p], rest);
        sum[whole] = rest;
      }
      float& to = out[turned ? j * g.out_stride + i : i * g.out_stride + j];
      to = g.beta == 0 ? g.alpha * sum[0] : g.beta * to + g.alpha * sum[0];
      for (std::int64_t block = 1; block < blocks; ++block) to += g.alpha * sum[block];
    }
}

}  // namespace lockstep::cpu::gemm_detail
