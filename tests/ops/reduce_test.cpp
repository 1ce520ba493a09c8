#include "lockstep/autograd/ops/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::check_op;
using testing::check_threads;
using testing::error_of;
using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::make_strided;
using testing::OpCase;
using testing::TensorList;

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

TEST(Sum, RefusesBadDimensions) {
  const Tensor x = make_input({2, 3});
  EXPECT_NE(error_of([&] { x.sum({2}); }).find("[sum]"), std::string::npos);
  EXPECT_NE(error_of([&] { x.sum({1, -1}); }).find("twice"), std::string::npos);
}

// --- the others ---------------------------------------------------------------------------------------------------

struct Op {
  const char* name;
  Tensor (*run)(const Tensor& x, const Shape& dims, bool keepdim);
  double (*whole)(const std::vector<double>& terms);
  bool integers = false;    // keeps integer dtypes
  bool empty_terms = true;  // defined over no elements
};

double plain_mean(const std::vector<double>& terms) {
  return plain_sum(terms) / static_cast<double>(terms.size());
}

double plain_var(const std::vector<double>& terms, double correction) {
  const double mean = plain_mean(terms);
  double total = 0;
  for (double t : terms) total += (t - mean) * (t - mean);
  return total / std::max(0.0, static_cast<double>(terms.size()) - correction);
}

double plain_logsumexp(const std::vector<double>& terms) {
  double total = 0;
  for (double t : terms) total += std::exp(t);
  return std::log(total);
}

const std::vector<Op> kOps = {
    {"sum", sum, plain_sum, true},
    {"mean", mean, plain_mean},
    {"var", [](const Tensor& x, const Shape& d, bool keep) { return x.var(d, 1.0, keep); },
     [](const std::vector<double>& t) { return plain_var(t, 1.0); }},
    {"var_0", [](const Tensor& x, const Shape& d, bool keep) { return x.var(d, 0.0, keep); },
     [](const std::vector<double>& t) { return plain_var(t, 0.0); }},
    {"max", max, [](const std::vector<double>& t) { return *std::max_element(t.begin(), t.end()); }, true, false},
    {"min", min, [](const std::vector<double>& t) { return *std::min_element(t.begin(), t.end()); }, true, false},
    {"logsumexp", logsumexp, plain_logsumexp},
};

class ReduceOps : public ::testing::TestWithParam<Op> {};
INSTANTIATE_TEST_SUITE_P(Ops, ReduceOps, ::testing::ValuesIn(kOps),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ReduceOps, MatchPlainLoops) {
  const Op& op = GetParam();
  for (const Case& c : kCases) {
    const bool terms = Tensor(make_input(c.sizes)).numel() > 0 || kept_sizes(c).numel() == 0;
    if (!terms && !op.empty_terms) continue;
    for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
      const Tensor x = make_input(c.sizes, 3, dtype, -2.0, 3.0);
      const Tensor expected = reference(c, x, op.whole);
      const double rtol = dtype == kFloat16 ? 1e-3 : dtype == kBFloat16 ? 8e-3 : dtype == kFloat32 ? 2e-6 : 1e-12;
      for (const Tensor& input : {x, make_strided(x)}) {
        const Tensor kept = op.run(input, c.dims, true);
        EXPECT_EQ(kept.dtype(), dtype);
        expect_close(kept, expected, rtol, rtol);
        const Tensor dropped = op.run(input, c.dims, false);
        EXPECT_EQ(dropped.dim(), c.dims.empty() ? 0 : c.sizes.dim() - c.dims.dim());
        expect_close(dropped, kept.as_strided(dropped.sizes(), contiguous_strides(dropped.sizes()), 0), 0.0, 0.0);
      }
    }
  }
}

TEST_P(ReduceOps, Integers) {
  const Op& op = GetParam();
  const Tensor x = make_input({3, 40}, 3, kInt64, -50.0, 50.0);
  if (std::string_view(op.name) == "logsumexp") {
    EXPECT_EQ(op.run(x, {1}, false).dtype(), kFloat32);
    return;
  }
  if (!op.integers) {
    EXPECT_NE(error_of([&] { op.run(x, {1}, false); }).find("expected a floating-point tensor, found int64"),
              std::string::npos);
    return;
  }
  const Case c{{3, 40}, {1}};
  for (DType dtype : {kInt64, kInt32}) {
    EXPECT_EQ(op.run(cast_values(x, dtype), {1}, true).dtype(),
              op.run == static_cast<decltype(op.run)>(sum) ? kInt64 : dtype);
    expect_close(op.run(cast_values(x, dtype), {1}, true), reference(c, x, op.whole), 0.0, 0.0);
  }
}

// Not of any layout: the terms of an input that is not contiguous are added in another order.
OpCase reduction_of(const Op& op, const Case& c, bool keepdim = false) {
  return {.name = op.name,
          .inputs = [c] { return TensorList{make_leaf(c.sizes)}; },
          .run = [&op, c, keepdim](const TensorList& in) { return TensorList{op.run(in[0], c.dims, keepdim)}; },
          .any_layout = false};
}

TEST_P(ReduceOps, Operation) {
  const Op& op = GetParam();
  for (const Case& c : {Case{{3, 4}, {}}, Case{{3, 4}, {1}}, Case{{3, 4}, {0}}, Case{{2, 3, 2}, {0, -1}}})
    for (const bool keepdim : {false, true}) check_op(reduction_of(op, c, keepdim));
  for (const Case& c : {Case{{500, 600}, {}}, Case{{500, 600}, {0}}, Case{{500, 600}, {1}}})
    check_threads(reduction_of(op, c));
}

TEST_P(ReduceOps, RefuseBadDimensions) {
  const Op& op = GetParam();
  const Tensor x = make_input({2, 3});
  EXPECT_NE(error_of([&] { op.run(x, {2}, false); }).find("["), std::string::npos);
  EXPECT_NE(error_of([&] { op.run(x, {0, -2}, false); }).find("appears twice"), std::string::npos);
  EXPECT_NE(error_of([&] { op.run({}, {}, false); }).find("undefined"), std::string::npos);
  if (!op.empty_terms) {
    EXPECT_NE(error_of([&] { op.run(empty({2, 0}), {1}, false); }).find("has no elements"), std::string::npos);
  }
}

TEST(Extremes, TiesShareTheGradient) {
  for (auto* run : {static_cast<Tensor (*)(const Tensor&, const Shape&, bool)>(max),
                    static_cast<Tensor (*)(const Tensor&, const Shape&, bool)>(min)}) {
    const Tensor x = full({2, 4}, 3.0, {.dtype = kFloat64});
    x.set_requires_grad(true);
    run(x, {1}, false).sum().backward();
    EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(8, 0.25));
  }
}

TEST(Extremes, NanWins) {
  for (DType dtype : {kFloat32, kFloat64})
    for (std::int64_t at : {0, 5, 99}) {
      const Tensor x = make_input({100, 3}, 1, dtype);
      fill_values(rows(x, at, 1), std::numeric_limits<double>::quiet_NaN());
      for (const Tensor& out : {max(x, {0}), min(x, {0}), max(x), min(x)})
        for (double v : out.to_vector<double>()) EXPECT_TRUE(std::isnan(v));
      EXPECT_EQ(argmax(x, 0).to_vector<std::int64_t>(), std::vector<std::int64_t>(3, at));
      EXPECT_EQ(argmin(x, 0).to_vector<std::int64_t>(), std::vector<std::int64_t>(3, at));
    }
}

TEST(LogSumExp, IsStable) {
  const double inf = std::numeric_limits<double>::infinity();
  expect_close(logsumexp(tensor<double>({1000.0, 1000.0}), {0}),
               scalar_tensor(1000.0 + std::log(2.0), {.dtype = kFloat64}), 1e-15);
  expect_close(logsumexp(tensor<float>({-1000.0f, -1000.0f}), {0}), scalar_tensor(-1000.0 + std::log(2.0)), 1e-6);
  EXPECT_EQ(logsumexp(tensor<double>({-inf, -inf}), {0}).item(), -inf);
  EXPECT_EQ(logsumexp(tensor<double>({inf, 1.0}), {0}).item(), inf);
  EXPECT_EQ(logsumexp(tensor<double>({-inf, 1.0}), {0}).item(), 1.0);
  const Tensor x = tensor<double>({-inf, -inf});
  x.set_requires_grad(true);
  logsumexp(x, {0}).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0.0, 0.0}));
}

TEST(Var, IsAccurateFarFromZero) {
  const Tensor x = make_input({20000}, 1, kFloat32, 10000.0, 10001.0);
  expect_close(x.var(), cast_values(cast_values(x, kFloat64).var(), kFloat32), 1e-4);
}

struct ArgCase {
  Shape sizes;
  std::int64_t dim;
};

class Arg : public ::testing::TestWithParam<ArgCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Arg,
                         ::testing::Values(ArgCase{{7}, 0}, ArgCase{{3, 4}, 0}, ArgCase{{3, 4}, 1},
                                           ArgCase{{5, 3, 6}, 1}, ArgCase{{3, 700}, 0}, ArgCase{{700, 3}, 0},
                                           ArgCase{{3, 2000}, -1}, ArgCase{{0, 3}, 1}, ArgCase{{}, 0},
                                           ArgCase{{400, 300}, 0}, ArgCase{{400, 300}, 1}, ArgCase{{4, 1, 3}, 1}));

TEST_P(Arg, FindsTheFirstExtreme) {
  const ArgCase& c = GetParam();
  for (DType dtype : {kFloat32, kFloat64, kFloat16, kInt64, kUInt8}) {
    const Tensor x = make_input(c.sizes, 6, dtype, 0.0, 9.0);  // integers: with many ties
    const Case along{c.sizes, c.sizes.empty() ? Shape{} : Shape{c.dim}};
    const Tensor first_max = reference(along, x, [](const std::vector<double>& t) {
      return static_cast<double>(std::max_element(t.begin(), t.end()) - t.begin());
    });
    const Tensor first_min = reference(along, x, [](const std::vector<double>& t) {
      return static_cast<double>(std::min_element(t.begin(), t.end()) - t.begin());
    });
    for (const Tensor& input : {x, make_strided(x)}) {
      EXPECT_EQ(argmax(input, c.dim).dtype(), kInt64);
      expect_close(argmax(input, c.dim, true), first_max, 0.0, 0.0);
      expect_close(argmin(input, c.dim, true), first_min, 0.0, 0.0);
      EXPECT_EQ(input.argmax(c.dim).to_vector<double>(), first_max.to_vector<double>());
    }
  }
}

TEST(Arg, OverAllElements) {
  const Tensor x = make_strided(tensor<float>({3.0f, 9.0f, 1.0f, 9.0f}));
  EXPECT_EQ(argmax(x).item<std::int64_t>(), 1);
  EXPECT_EQ(argmin(x).item<std::int64_t>(), 2);
  EXPECT_EQ(to_string(argmax(x, {}, true).sizes()), "[1]");
  EXPECT_NE(error_of([] { argmax(empty({0})); }).find("[argmax]"), std::string::npos);
}

TEST(AllAny, CountTruth) {
  const Tensor x = tensor<float>({1.0f, 0.0f, 2.0f, 3.0f}).as_strided({2, 2}, {2, 1}, 0);
  EXPECT_EQ(all(x, {1}).to_vector<double>(), (std::vector<double>{0.0, 1.0}));
  EXPECT_EQ(any(x, {1}).to_vector<double>(), (std::vector<double>{1.0, 1.0}));
  EXPECT_FALSE(all(x).item<bool>());
  EXPECT_TRUE(any(x).item<bool>());
  EXPECT_FALSE(any(x * 0.0).item<bool>());
  EXPECT_TRUE(all(empty({0})).item<bool>());
  EXPECT_FALSE(any(empty({0})).item<bool>());
  EXPECT_EQ(all(x).dtype(), kBool);
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
