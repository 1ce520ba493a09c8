#include "autograd/ops/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "autograd/gradcheck.h"
#include "autograd/sum_to.h"
#include "core/copy.h"
#include "core/error.h"
#include "core/factories.h"
#include "core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;
using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::make_strided;

/// Walks over every element of x and calls visit(output index, value).
template <typename Visit>
void for_each_term(const Tensor& x, const std::vector<bool>& reduced, Visit&& visit) {
  const std::vector<double> values = x.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), output = 0, step = 1;
    for (int d = x.dim() - 1; d >= 0; --d) {
      const std::int64_t index = rest % x.sizes()[d];
      rest /= x.sizes()[d];
      if (reduced[static_cast<std::size_t>(d)]) continue;
      output += index * step;
      step *= x.sizes()[d];
    }
    visit(static_cast<std::size_t>(output), values[i]);
  }
}

struct Case {
  Shape sizes;
  Shape dims;
};

std::vector<bool> mask_of(const Case& c) {
  std::vector<bool> reduced(static_cast<std::size_t>(c.sizes.dim()), c.dims.empty());
  for (std::int64_t d : c.dims) reduced[static_cast<std::size_t>(wrap_dim(d, c.sizes.dim(), "test"))] = true;
  return reduced;
}

Shape kept_sizes(const Case& c) {
  Shape sizes = c.sizes;
  const auto reduced = mask_of(c);
  for (int d = 0; d < sizes.dim(); ++d)
    if (reduced[static_cast<std::size_t>(d)]) sizes[d] = 1;
  return sizes;
}

/// Applies `whole` (all terms of an output -> value) to x in double.
template <typename Whole>
Tensor reference(const Case& c, const Tensor& x, Whole&& whole) {
  Tensor out = empty(kept_sizes(c), {.dtype = kFloat64});
  std::vector<std::vector<double>> terms(static_cast<std::size_t>(out.numel()));
  for_each_term(x, mask_of(c), [&](std::size_t o, double v) { terms[o].push_back(v); });
  for (std::size_t o = 0; o < terms.size(); ++o) out.data<double>()[o] = whole(terms[o]);
  return out;
}

double plain_sum(const std::vector<double>& terms) {
  double total = 0;
  for (double t : terms) total += t;
  return total;
}

const std::vector<Case> kCases = {
    {{}, {}},         {{5}, {}},           {{5}, {0}},          {{3, 4}, {}},           {{3, 4}, {0}},
    {{3, 4}, {-1}},   {{700, 3}, {1}},     {{3, 700}, {0}},     {{700, 3}, {0}},        {{2, 3, 4, 5}, {0, 2, 3}},
    {{2, 3, 4}, {1}}, {{2, 3, 4}, {0, 2}}, {{9, 600}, {0}},     {{9, 600}, {1}},        {{1, 4, 1}, {0, 2}},
    {{70000}, {0}},   {{300, 260}, {}},    {{300, 260}, {0}},   {{2, 70001}, {1}},      {{40000, 3}, {0}},
    {{3, 0}, {1}},    {{0, 3}, {1}},       {{2, 3, 1100}, {1}}, {{5, 2, 3, 2}, {3, 0}},
};

class Reduction : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Reduction, ::testing::ValuesIn(kCases));

TEST_P(Reduction, SumMatchesPlainLoop) {
  const Case& c = GetParam();
  for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool}) {
    const Tensor x = make_input(c.sizes, 3, dtype, 0.0, 5.0);
    const Tensor expected = reference(c, x, plain_sum);
    const double rtol = dtype == kFloat16 ? 1e-3 : dtype == kBFloat16 ? 8e-3 : dtype == kFloat32 ? 1e-6 : 1e-12;
    const bool fits = dtype != kFloat16 || x.numel() < 20000;  // larger sums overflow float16
    if (!fits) continue;
    for (const Tensor& input : {x, make_strided(x)}) {
      const Tensor kept = sum(input, c.dims, true);
      EXPECT_EQ(kept.dtype(), is_floating_point(dtype) ? dtype : kInt64);
      expect_close(kept, expected, rtol, 1e-6);
      EXPECT_EQ(sum(input, c.dims).to_vector<double>(), kept.to_vector<double>());
    }
  }
}

// Equal terms are the worst case: every addition rounds the same way. Plain summation is wrong by 0.1 % and more.
TEST(Sum, IsAccurateForMillionsOfFloats) {
  const Tensor x = full({3000000}, 0.1);
  EXPECT_NEAR(x.sum().item(), 3000000 * static_cast<double>(0.1f), 0.1);
  const Tensor tall = full({300000, 4}, 0.1);
  expect_close(tall.sum({0}), full({4}, 300000 * static_cast<double>(0.1f), {.dtype = kFloat64}), 3e-7);
}

TEST(Sum, BitsDoNotDependOnThreads) {
  const Tensor x = make_input({1000, 777}, 5, kFloat32);
  const auto run = [&](int threads) {
    set_num_threads(threads);
    std::vector<std::vector<float>> results;
    for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}}) results.push_back(x.sum(dims).to_vector<float>());
    return results;
  };
  const auto one = run(1);
  EXPECT_EQ(one, run(2));
  EXPECT_EQ(one, run(3));
  set_num_threads(2);
}

TEST(Sum, Gradients) {
  for (const Case& c : {Case{{3, 4}, {}}, Case{{3, 4}, {1}}, Case{{2, 3, 2}, {0, -1}}})
    for (bool keepdim : {false, true})
      gradcheck([&](const std::vector<Tensor>& in) { return in[0].sum(c.dims, keepdim); }, {make_leaf(c.sizes)});
}

TEST(Sum, RefusesBadDimensions) {
  const Tensor x = make_input({2, 3});
  EXPECT_NE(error_of([&] { x.sum({2}); }).find("[sum]"), std::string::npos);
  EXPECT_NE(error_of([&] { x.sum({1, -1}); }).find("twice"), std::string::npos);
}

TEST(SumTo, SumsOverBroadcastDimensions) {
  const Tensor grad = make_input({4, 3, 5});
  struct Target {
    Shape sizes;
    Case same;
  };
  for (const Target& t :
       {Target{{3, 5}, {{4, 3, 5}, {0}}}, Target{{5}, {{4, 3, 5}, {0, 1}}}, Target{{3, 1}, {{4, 3, 5}, {0, 2}}},
        Target{{}, {{4, 3, 5}, {}}}, Target{{4, 1, 5}, {{4, 3, 5}, {1}}}}) {
    const Tensor out = sum_to(grad, t.sizes);
    EXPECT_EQ(to_string(out.sizes()), to_string(t.sizes));
    EXPECT_EQ(out.to_vector<double>(), grad.sum(t.same.dims).to_vector<double>());
    expect_close(sum_to(make_strided(grad), t.sizes), out, 1e-14);
  }
  EXPECT_TRUE(sum_to(grad, {4, 3, 5}).is_same(grad));
}

}  // namespace
}  // namespace lockstep
