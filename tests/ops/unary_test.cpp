#include "lockstep/autograd/ops/unary/unary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/autograd/ops/unary/special_functors.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/vector_math.h"
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

double gelu_tanh_reference(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

/// By bisection.
double erf_inverse(double y) {
  if (std::abs(y) > 1.0) return std::nan("");
  if (std::abs(y) == 1.0) return y * std::numeric_limits<double>::infinity();
  double low = -8.0, high = 8.0;
  for (int i = 0; i < 200; ++i) (std::erf(0.5 * (low + high)) < y ? low : high) = 0.5 * (low + high);
  return 0.5 * (low + high);
}

struct Op {
  const char* name;
  Tensor (*run)(const Tensor&);
  double (*reference)(double);
  double low = -3.0, high = 3.0;  // where its values and gradients are checked
  bool keeps_integers = false;
};

const std::vector<Op> kOps = {
    {"neg", [](const Tensor& x) { return -x; }, [](double x) { return -x; }, -3.0, 3.0, true},
    {"abs", [](const Tensor& x) { return x.abs(); }, [](double x) { return std::fabs(x); }, -3.0, 3.0, true},
    {"relu", [](const Tensor& x) { return x.relu(); }, [](double x) { return x > 0 ? x : 0.0; }, -3.0, 3.0, true},
    {"clamp", [](const Tensor& x) { return x.clamp(-1.0, 2.0); },
     [](double x) { return x < -1.0 ? -1.0 : (x > 2.0 ? 2.0 : x); }, -3.0, 3.0, true},
    {"clamp_min", [](const Tensor& x) { return clamp(x, 1.0); }, [](double x) { return x < 1.0 ? 1.0 : x; }, -3.0, 3.0,
     true},
    {"clamp_max", [](const Tensor& x) { return clamp(x, {}, 1.0); }, [](double x) { return x > 1.0 ? 1.0 : x; }, -3.0,
     3.0, true},
    {"exp", [](const Tensor& x) { return x.exp(); }, [](double x) { return std::exp(x); }},
    {"log", [](const Tensor& x) { return x.log(); }, [](double x) { return std::log(x); }, 0.1, 5.0},
    {"sqrt", [](const Tensor& x) { return x.sqrt(); }, [](double x) { return std::sqrt(x); }, 0.1, 5.0},
    {"rsqrt", [](const Tensor& x) { return x.rsqrt(); }, [](double x) { return 1.0 / std::sqrt(x); }, 0.1, 5.0},
    {"reciprocal", reciprocal, [](double x) { return 1.0 / x; }, 0.1, 5.0},
    {"square", square, [](double x) { return x * x; }, -3.0, 3.0, true},
    {"pow_0", [](const Tensor& x) { return x.pow(0.0); }, [](double) { return 1.0; }, -3.0, 3.0, true},
    {"pow_3", [](const Tensor& x) { return x.pow(3.0); }, [](double x) { return x * x * x; }, -3.0, 3.0, true},
    {"pow_half", [](const Tensor& x) { return x.pow(0.5); }, [](double x) { return std::sqrt(x); }, 0.1, 5.0},
    {"pow_minus_half", [](const Tensor& x) { return x.pow(-0.5); }, [](double x) { return 1.0 / std::sqrt(x); }, 0.1,
     5.0},
    {"pow_1_7", [](const Tensor& x) { return x.pow(1.7); }, [](double x) { return std::pow(x, 1.7); }, 0.1, 5.0},
    {"tanh", [](const Tensor& x) { return x.tanh(); }, [](double x) { return std::tanh(x); }},
    {"sigmoid", [](const Tensor& x) { return x.sigmoid(); }, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }},
    {"leaky_relu", [](const Tensor& x) { return leaky_relu(x); }, [](double x) { return x > 0 ? x : 0.01 * x; }},
    {"leaky_relu_2", [](const Tensor& x) { return leaky_relu(x, 0.2); }, [](double x) { return x > 0 ? x : 0.2 * x; }},
    {"gelu", [](const Tensor& x) { return gelu(x); },
     [](double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }},
    {"gelu_tanh", [](const Tensor& x) { return gelu(x, GeluMode::tanh); }, gelu_tanh_reference},
    {"silu", silu, [](double x) { return x / (1.0 + std::exp(-x)); }},
    {"sin", [](const Tensor& x) { return sin(x); }, [](double x) { return std::sin(x); }},
    {"cos", [](const Tensor& x) { return cos(x); }, [](double x) { return std::cos(x); }},
    {"sign", [](const Tensor& x) { return sign(x); }, [](double x) { return double(x > 0) - double(x < 0); }, -3.0, 3.0,
     true},
    {"floor", [](const Tensor& x) { return floor(x); }, [](double x) { return std::floor(x); }, -3.0, 3.0, true},
    {"ceil", [](const Tensor& x) { return ceil(x); }, [](double x) { return std::ceil(x); }, -3.0, 3.0, true},
    {"round", [](const Tensor& x) { return round(x); }, [](double x) { return std::nearbyint(x); }, -3.0, 3.0, true},
    {"trunc", [](const Tensor& x) { return trunc(x); }, [](double x) { return std::trunc(x); }, -3.0, 3.0, true},
    {"hardtanh", [](const Tensor& x) { return hardtanh(x, -1.0, 2.0); },
     [](double x) { return x < -1.0 ? -1.0 : (x > 2.0 ? 2.0 : x); }, -3.0, 3.0, true},
    {"elu", [](const Tensor& x) { return elu(x, 0.7); }, [](double x) { return x > 0 ? x : 0.7 * std::expm1(x); }},
    {"selu", [](const Tensor& x) { return selu(x); },
     [](double x) { return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * std::expm1(x)); }},
    {"celu", [](const Tensor& x) { return celu(x, 1.3); },
     [](double x) { return x > 0 ? x : 1.3 * std::expm1(x / 1.3); }},
    {"softplus", [](const Tensor& x) { return softplus(x, 2.0, 5.0); },
     [](double x) { return 2 * x > 5.0 ? x : std::log1p(std::exp(2 * x)) / 2; }},
    {"logsigmoid", [](const Tensor& x) { return logsigmoid(x); }, [](double x) { return -std::log1p(std::exp(-x)); }},
    {"softsign", [](const Tensor& x) { return softsign(x); }, [](double x) { return x / (1 + std::fabs(x)); }},
    {"hardswish", [](const Tensor& x) { return hardswish(x); },
     [](double x) { return x * std::clamp(x + 3, 0.0, 6.0) / 6; }, -2.9, 2.9},
    {"hardsigmoid", [](const Tensor& x) { return hardsigmoid(x); },
     [](double x) { return std::clamp(x + 3, 0.0, 6.0) / 6; }, -2.9, 2.9},
    {"mish", [](const Tensor& x) { return mish(x); }, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
    {"erf", [](const Tensor& x) { return erf(x); }, [](double x) { return std::erf(x); }},
    {"log1p", [](const Tensor& x) { return log1p(x); }, [](double x) { return std::log1p(x); }, -0.9, 5.0},
    {"expm1", [](const Tensor& x) { return expm1(x); }, [](double x) { return std::expm1(x); }},
    {"log2", [](const Tensor& x) { return log2(x); }, [](double x) { return std::log2(x); }, 0.1, 5.0},
    {"log10", [](const Tensor& x) { return log10(x); }, [](double x) { return std::log10(x); }, 0.1, 5.0},
    {"tan", [](const Tensor& x) { return tan(x); }, [](double x) { return std::tan(x); }, -1.4, 1.4},
    {"sinh", [](const Tensor& x) { return sinh(x); }, [](double x) { return std::sinh(x); }},
    {"cosh", [](const Tensor& x) { return cosh(x); }, [](double x) { return std::cosh(x); }},
    {"atan", [](const Tensor& x) { return atan(x); }, [](double x) { return std::atan(x); }},
    {"asin", [](const Tensor& x) { return asin(x); }, [](double x) { return std::asin(x); }, -0.9, 0.9},
    {"acos", [](const Tensor& x) { return acos(x); }, [](double x) { return std::acos(x); }, -0.9, 0.9},
    {"asinh", [](const Tensor& x) { return asinh(x); }, [](double x) { return std::asinh(x); }},
    {"acosh", [](const Tensor& x) { return acosh(x); }, [](double x) { return std::acosh(x); }, 1.5, 5.0},
    {"atanh", [](const Tensor& x) { return atanh(x); }, [](double x) { return std::atanh(x); }, -0.9, 0.9},
    {"lgamma", [](const Tensor& x) { return lgamma(x); }, [](double x) { return std::lgamma(x); }, 4.5, 20.0},
    {"digamma", [](const Tensor& x) { return digamma(x); },
     [](double x) {
       double sum = 0.0;  // by digamma(x + 1) = digamma(x) + 1 / x, up to where two terms of its series do
       for (; x < 200.0; x += 1.0) sum -= 1.0 / x;
       return sum + std::log(x) - 0.5 / x - 1.0 / (12.0 * x * x) + 1.0 / (120.0 * x * x * x * x);
     },
     6.0, 20.0},
    {"erfinv", [](const Tensor& x) { return erfinv(x); }, erf_inverse, -0.95, 0.95},
    {"erfc", erfc, [](double x) { return std::erfc(x); }},
    {"nan_to_num", [](const Tensor& x) { return nan_to_num(x); }, [](double x) { return x; }, -3.0, 3.0, true},
};

Tensor reference(const Op& op, const Tensor& x) {
  Tensor out = cast_values(x, kFloat64).clone();
  for (std::int64_t i = 0; i < x.numel(); ++i) out.data<double>()[i] = op.reference(out.data<double>()[i]);
  return out;
}

class Unary : public ::testing::TestWithParam<Op> {};
INSTANTIATE_TEST_SUITE_P(Ops, Unary, ::testing::ValuesIn(kOps),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Unary, MatchesDoublePrecision) {
  const Op& op = GetParam();
  struct Tolerance {
    DType dtype;
    double rtol;
  };
  for (const Shape& sizes : {Shape{}, Shape{7}, Shape{3, 700}, Shape{2, 3, 4}, Shape{0, 3}})
    for (const auto& [dtype, rtol] : {Tolerance{kFloat32, 5e-7}, Tolerance{kFloat64, 1e-14}, Tolerance{kFloat16, 1e-3},
                                      Tolerance{kBFloat16, 8e-3}}) {
      const Tensor x = make_input(sizes, 4, dtype, op.low, op.high);
      for (const Tensor& input : {x, make_strided(x)}) {
        EXPECT_EQ(op.run(input).dtype(), dtype);
        expect_close(op.run(input), reference(op, x), rtol, rtol * 0.1);
      }
    }
}

TEST_P(Unary, Integers) {
  const Op& op = GetParam();
  for (DType dtype : {kInt64, kInt32}) {
    const Tensor x = make_input({3, 200}, 4, dtype, op.low < 0 ? -9.0 : 1.0, 9.0);
    EXPECT_EQ(op.run(x).dtype(), op.keeps_integers ? dtype : kFloat32);
    expect_close(op.run(x), reference(op, x), 5e-7, 1e-7);
  }
}

TEST_P(Unary, Operation) {
  const Op& op = GetParam();
  const auto of_shape = [&](const Shape& sizes) {
    return OpCase{.name = op.name,
                  .inputs = [&op, sizes] { return TensorList{make_leaf(sizes, 4, kFloat64, op.low, op.high)}; },
                  .run = [&op](const TensorList& in) { return TensorList{op.run(in[0])}; }};
  };
  check_op(of_shape({3, 40}));
  check_threads(of_shape({300, 333}));
}

TEST_P(Unary, TakesAnExpandedGradient) {
  const Op& op = GetParam();
  const Tensor x = make_leaf({3, 700}, 4, kFloat64, op.low, op.high),
               y = make_leaf({3, 700}, 4, kFloat64, op.low, op.high);
  op.run(x).sum().backward();
  op.run(y).backward(ones({3, 700}, {.dtype = kFloat64}));
  expect_close(x.grad(), y.grad(), 0.0, 0.0);
}

TEST_P(Unary, NamesItselfWhenTheTensorIsUndefined) {
  EXPECT_NE(error_of([&] { GetParam().run({}); }).find("undefined"), std::string::npos);
}

// --- accuracy over the whole range of float32 ---------------------------------------------------------------------

struct Accuracy {
  const char* name;
  Tensor (*run)(const Tensor&);
  double (*reference)(double);
  double ulps;
};

class Float32 : public ::testing::TestWithParam<Accuracy> {};
INSTANTIATE_TEST_SUITE_P(Unary, Float32,
                         ::testing::Values(Accuracy{"exp", exp, [](double x) { return std::exp(x); }, 1.1},
                                           Accuracy{"log", log, [](double x) { return std::log(x); }, 0.8},
                                           Accuracy{"tanh", tanh, [](double x) { return std::tanh(x); }, 1.4},
                                           Accuracy{"sigmoid", sigmoid,
                                                    [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, 2.4},
                                           Accuracy{"sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.5},
                                           Accuracy{"tan", tan, [](double x) { return std::tan(x); }, 0.52},
                                           Accuracy{"atan", atan, [](double x) { return std::atan(x); }, 2.0},
                                           Accuracy{"asin", asin, [](double x) { return std::asin(x); }, 2.0},
                                           Accuracy{"acos", acos, [](double x) { return std::acos(x); }, 2.0},
                                           Accuracy{"log2", log2, [](double x) { return std::log2(x); }, 0.52},
                                           Accuracy{"log10", log10, [](double x) { return std::log10(x); }, 0.52},
                                           Accuracy{"rsqrt", rsqrt, [](double x) { return 1.0 / std::sqrt(x); }, 1.5}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Float32, IsWithinAFewUlpEverywhere) {
  const Accuracy& function = GetParam();
  constexpr std::int64_t kCount = 1 << 20;
  Tensor x = empty({kCount});
  for (std::int64_t i = 0; i < kCount; ++i)  // every 4099th bit pattern: subnormals, infinities and NaNs too
    x.data<float>()[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 4099));
  const Tensor y = function.run(x);
  double worst = 0.0;
  float worst_at = 0.0f;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const float at = x.data<float>()[i], actual = y.data<float>()[i];
    const double exact = function.reference(static_cast<double>(at));
    const auto rounded = static_cast<float>(exact);
    if (std::isnan(exact)) {
      ASSERT_TRUE(std::isnan(actual)) << "at " << at;
    } else if (std::isinf(rounded)) {
      ASSERT_EQ(actual, rounded) << "at " << at;
    } else {
      const float size = std::fabs(rounded);
      const double ulp = static_cast<double>(std::nextafter(size, HUGE_VALF)) - static_cast<double>(size);
      const double error = std::fabs(static_cast<double>(actual) - exact) / ulp;
      if (error > worst) {
        worst = error;
        worst_at = at;
      }
    }
  }
  EXPECT_LE(worst, function.ulps) << "at " << worst_at;
}

// In the lower tail too, where 1 + erf would leave no digits.
TEST(Unary, GeluIsAccurateRelativeToItself) {
  constexpr std::int64_t kCount = 1 << 16;
  Tensor x = empty({kCount});
  for (std::int64_t i = 0; i < kCount; ++i) x.data<float>()[i] = -12.0f + 32.0f * static_cast<float>(i) / kCount;
  x.set_requires_grad(true);
  const Tensor y = gelu(x);
  y.backward(ones({kCount}));
  const double root = std::sqrt(0.5), factor = root / std::sqrt(std::acos(-1.0));
  double worst = 0.0, worst_gradient = 0.0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double at = x.data<float>()[i], cumulative = 0.5 * std::erfc(-at * root), expected = at * cumulative;
    const double gradient = cumulative + at * factor * std::exp(-0.5 * at * at);
    if (at != 0) worst = std::max(worst, std::fabs(y.data<float>()[i] / expected - 1));
    worst_gradient = std::max(worst_gradient, std::fabs(x.grad().data<float>()[i] - gradient));
  }
  EXPECT_LT(worst, 7e-7);
  EXPECT_LT(worst_gradient, 4e-7);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  expect_close(gelu(tensor<float>({inf, nan, 0.0f, -30.0f})), tensor<float>({inf, nan, 0.0f, -0.0f}), 0.0, 0.0);
}

TEST(UnarySpecialValues, AreThoseOfC) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = tensor<float>({inf, -inf, nan, 0.0f, -0.0f});
  expect_close(exp(x), tensor<float>({inf, 0.0f, nan, 1.0f, 1.0f}), 0.0, 0.0);
  expect_close(log(x), tensor<float>({inf, nan, nan, -inf, -inf}), 0.0, 0.0);
  expect_close(tanh(x), tensor<float>({1.0f, -1.0f, nan, 0.0f, -0.0f}), 0.0, 0.0);
  expect_close(sigmoid(x), tensor<float>({1.0f, 0.0f, nan, 0.5f, 0.5f}), 0.0, 0.0);
  expect_close(relu(x), tensor<float>({inf, 0.0f, nan, 0.0f, -0.0f}), 0.0, 0.0);
  expect_close(clamp(x, -1.0, 1.0), tensor<float>({1.0f, -1.0f, nan, 0.0f, -0.0f}), 0.0, 0.0);
  const float most = std::numeric_limits<float>::max();
  expect_close(nan_to_num(x), tensor<float>({most, -most, 0.0f, 0.0f, -0.0f}), 0.0, 0.0);
  expect_close(nan_to_num(x, 1.0, {}, 3.0), tensor<float>({most, 3.0f, 1.0f, 0.0f, -0.0f}), 0.0, 0.0);
  expect_close(nan_to_num(x.to(kFloat16), nan, 2.0), tensor<float>({2.0f, -65504.0f, nan, 0.0f, -0.0f}), 0.0, 0.0);
  expect_close(frac(tensor<float>({2.75f, -2.75f, inf, nan})), tensor<float>({0.75f, -0.75f, nan, nan}), 0.0, 0.0);
}

TEST(Unary, GradientsBesideWhatIsNotFinite) {
  const Tensor x = tensor<double>({INFINITY, -INFINITY, NAN, 2.5}), grad = tensor<double>({INFINITY, 3, 4, 5});
  x.set_requires_grad(true);
  nan_to_num(x).backward(grad);
  expect_close(x.grad(), tensor<double>({0, 0, 0, 5}), 0.0, 0.0);
  x.set_grad({});
  frac(x).backward(grad);
  expect_close(x.grad(), grad, 0.0, 0.0);
}

TEST(Unary, WhatLiesTurnedHasTheSameBits) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kInt64}) {
    const Tensor x = make_input({90, 80}, 4, dtype, -9.0, 9.0);
    expect_close(exp(x.t()), exp(x).t(), 0.0, 0.0);
    expect_close(x.t(), make_input({90, 80}, 4, dtype, -9.0, 9.0).t(), 0.0, 0.0);  // x stays
  }
}

TEST(UnaryDtypes, IntegersUnderFractionalParameters) {
  const Tensor x = tensor<std::int64_t>({1, 4, 9});
  EXPECT_EQ(clamp(x, 1.5).to_vector<double>(), (std::vector<double>{1.5, 4, 9}));
  EXPECT_EQ(pow(x, 0.5).to_vector<double>(), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(pow(x, 2.0).dtype(), kInt64);
  EXPECT_EQ(exp(tensor<bool>({true})).dtype(), kFloat32);
}

// Rows of doubles go by lines that vectorise, elements beyond those by the functions; both have the functions' bits.
TEST(Unary, RowsOfDoublesHaveTheFunctionsBits) {
  std::vector<double> x;
  for (const double size : {0.0, 1e-320, 1e-300, 1e-20, 0.35, 0.55, 0.7, 1.0, 21.9, 22.0, 22.1, 700.0, 700.1, 709.9,
                            1e5, 1.1e5, 1e300, std::numeric_limits<double>::infinity()})
    for (const double sign : {1.0, -1.0}) x.push_back(sign * size);
  x.push_back(std::numeric_limits<double>::quiet_NaN());
  for (int i = 0; i < 1500; ++i) x.push_back(0.37 * (i % 300 - 150) * (i < 600 ? 0.01 : 1.0));
  const struct {
    Tensor (*run)(const Tensor&);
    double (*expected)(double);
  } cases[] = {{exp, math::portable_exp},
               {log, math::portable_log},
               {sin, math::portable_sin},
               {cos, math::portable_cos},
               {tanh, math::portable_tanh},
               {sigmoid, [](double v) { return math::sigmoid(v); }},
               {silu, [](double v) { return v * math::sigmoid(v); }},
               {log1p, math::portable_log1p},
               {expm1, math::portable_expm1},
               {erf, math::portable_erf},
               {tan, math::portable_tan},
               {atan, math::portable_atan},
               {asin, math::portable_asin},
               {acos, math::portable_acos},
               {lgamma, [](double v) { return unary::log_gamma(v); }},
               {[](const Tensor& t) { return softplus(t, 0.5, 9.0); },
                [](double v) {
                  const double z = 0.5 * v;
                  return z > 9.0 ? v : (std::fmax(z, 0.0) + math::portable_log1p(math::exp_below(z))) / 0.5;
                }},
               {logsigmoid, [](double v) { return std::fmin(v, 0.0) - math::portable_log1p(math::exp_below(v)); }}};
  for (std::size_t c = 0; c < std::size(cases); ++c) {
    const std::vector<double> values = cases[c].run(tensor(x)).to_vector<double>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = cases[c].expected(x[i]);
      ASSERT_TRUE(std::bit_cast<std::uint64_t>(values[i]) == std::bit_cast<std::uint64_t>(expected) ||
                  (std::isnan(values[i]) && std::isnan(expected)))
          << c << ": " << x[i];
    }
  }
}

// Both are 0, but a product on the way that is too small to be normal costs a hundred times as much.
TEST(Unary, ExponentialsFarBelowAreZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {-103.98f, -104.0f, -105.0f, -150.0f, -175.9f, -176.0f, -177.0f, -1e9f, -infinity}) {
    const Tensor y = exp(full({40}, x));
    for (const float each : y.to_vector<float>()) EXPECT_EQ(std::bit_cast<std::uint32_t>(each), 0u) << x;
  }
  EXPECT_EQ(exp(tensor({-103.9f})).item<float>(), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(exp(tensor({-90.0f})).item<float>(), 8.19401262e-40f);
}

struct Refusal {
  const char* what;
  void (*run)();
};

class UnaryRefused : public ::testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(
    Unary, UnaryRefused,
    ::testing::Values(Refusal{"[clamp] expected at least one bound", [] { clamp(make_input({3}), {}); }},
                      Refusal{"[neg] is not defined for bool tensors", [] { neg(tensor<bool>({true})); }},
                      Refusal{"[pow] an integer tensor has no integer power of -2",
                              [] { pow(tensor<std::int64_t>({3}), -2.0); }},
                      Refusal{"[LogBackward] a tensor of shape [3] that backward needs was changed in place", [] {
                                const Tensor x = make_leaf({3}, 1, kFloat64, 1.0, 2.0);
                                const Tensor y = x.clone();
                                const Tensor out = y.log();
                                y.zero_();
                                out.sum().backward();
                              }}));

TEST_P(UnaryRefused, SaysWhy) {
  const std::string message = error_of(GetParam().run);
  EXPECT_NE(message.find(GetParam().what), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep
