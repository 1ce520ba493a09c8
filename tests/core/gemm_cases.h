#pragma once

// Products with operands of their own, and what their results are compared with.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::cpu {

using testing::same_bits;

template <typename T>
std::vector<T> random_values(std::int64_t count, std::uint64_t seed) {
  std::vector<T> values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (T& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<T>(static_cast<double>(state >> 40) * 0x1p-23 - 1.0);
  }
  return values;
}

// A product with operands of its own, rows a little apart.
template <typename T>
struct Case {
  Gemm<T> g;
  std::vector<T> a, b, out, bias, row_bias;

  Case(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch = 1,
       std::int64_t gap = 3) {
    const std::int64_t a_rows = transpose_a ? k : m, a_stride = (transpose_a ? m : k) + gap;
    const std::int64_t b_rows = transpose_b ? n : k, b_stride = (transpose_b ? k : n) + gap;
    a = random_values<T>(batch * a_rows * a_stride, 1);
    b = random_values<T>(batch * b_rows * b_stride, 2);
    out = random_values<T>(batch * m * (n + gap), 3);
    bias = random_values<T>(n, 4);
    row_bias = random_values<T>(m, 5);
    g = {.m = m,
         .n = n,
         .k = k,
         .a = {a.data(), a_stride, transpose_a, a_rows * a_stride},
         .b = {b.data(), b_stride, transpose_b, b_rows * b_stride},
         .out = out.data(),
         .out_stride = n + gap,
         .batch = batch,
         .out_batch_stride = m * (n + gap)};
  }
  // The result in memory of its own.
  std::vector<T> own(InstructionSet set) const {
    std::vector<T> result = out;
    Gemm<T> problem = g;
    problem.out = result.data();
    gemm_detail::multiply_own(problem, set);
    return result;
  }
};

template <typename T>
[[gnu::always_inline]] inline double element(const GemmOperand<T>& x, std::int64_t batch, std::int64_t i,
                                             std::int64_t j) {
  return static_cast<double>(x.data[batch * x.batch_stride + (x.transposed ? j * x.stride + i : i * x.stride + j)]);
}

template <typename T>
void expect_near_reference(const Case<T>& c, const std::vector<T>& result) {
  const Gemm<T>& g = c.g;
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  std::vector<T> rest = result;  // what must not be written
  // Of large products some elements are enough: each kernel and each edge has many.
  const std::int64_t step = 1 + (g.m * g.n * g.k >> 21);
  for (std::int64_t batch = 0; batch < g.batch; ++batch)
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t j = 0; j < g.n; ++j) {
        const auto at = static_cast<std::size_t>(batch * g.out_batch_stride + i * g.out_stride + j);
        rest[at] = c.out[at];
        if ((i * g.n + j) % step != 0) continue;
        double sum = 0, size = 1;
        for (std::int64_t p = 0; p < g.k; ++p) {
          const double term = element(g.a, batch, i, p) * element(g.b, batch, p, j);
          sum += term;
          size += std::fabs(term);
        }
        double value = static_cast<double>(g.alpha) * sum;
        if (g.beta != 0) value += static_cast<double>(g.beta) * static_cast<double>(c.out[at]);
        if (g.bias) value += static_cast<double>(g.bias[j]);
        if (g.row_bias) value += static_cast<double>(g.row_bias[i]);
        if (g.activation == Activation::relu) value = std::max(0.0, value);
        if (g.activation == Activation::gelu) value *= 0.5 * (1 + std::erf(value * std::sqrt(0.5)));
        ASSERT_NEAR(static_cast<double>(result[at]), value, eps * 8 * size)
            << "m " << g.m << " n " << g.n << " k " << g.k << " a" << g.a.transposed << " b" << g.b.transposed << " at "
            << batch << ", " << i << ", " << j;
      }
  ASSERT_EQ(std::memcmp(rest.data(), c.out.data(), rest.size() * sizeof(T)), 0) << "wrote beside the result";
}

}  // namespace lockstep::cpu
