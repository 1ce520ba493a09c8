#include "lockstep/autograd/ops/binary/binary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/view/view.h"
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

using TensorFunction = Tensor (*)(const Tensor&, const Tensor&);
using Function = double (*)(double, double);

struct Op {
  const char* name;
  TensorFunction run;
  Function reference;
  double low = -2.0;  // of the inputs
  bool integers = true;
  bool gradient = true;
};

std::ostream& operator<<(std::ostream& out, const Op& op) {
  return out << op.name;
}

const std::vector<Op> kOps = {
    {"add", [](const Tensor& a, const Tensor& b) { return a + b; }, [](double a, double b) { return a + b; }},
    {"add_alpha", [](const Tensor& a, const Tensor& b) { return add(a, b, 3.0); },
     [](double a, double b) { return a + 3.0 * b; }},
    {"sub", [](const Tensor& a, const Tensor& b) { return a - b; }, [](double a, double b) { return a - b; }},
    {"mul", [](const Tensor& a, const Tensor& b) { return a * b; }, [](double a, double b) { return a * b; }},
    {"div", [](const Tensor& a, const Tensor& b) { return a / b; }, [](double a, double b) { return a / b; }, 0.5,
     false},
    {"maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); },
     [](double a, double b) { return a > b ? a : b; }},
    {"minimum", [](const Tensor& a, const Tensor& b) { return minimum(a, b); },
     [](double a, double b) { return a < b ? a : b; }},
    {"pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); },
     [](double a, double b) { return std::pow(a, b); }, 0.5},
    {"eq", [](const Tensor& a, const Tensor& b) { return a == b; }, [](double a, double b) { return double(a == b); },
     -2.0, true, false},
    {"ne", [](const Tensor& a, const Tensor& b) { return a != b; }, [](double a, double b) { return double(a != b); },
     -2.0, true, false},
    {"lt", [](const Tensor& a, const Tensor& b) { return a < b; }, [](double a, double b) { return double(a < b); },
     -2.0, true, false},
    {"le", [](const Tensor& a, const Tensor& b) { return a <= b; }, [](double a, double b) { return double(a <= b); },
     -2.0, true, false},
    {"gt", [](const Tensor& a, const Tensor& b) { return a > b; }, [](double a, double b) { return double(a > b); },
     -2.0, true, false},
    {"ge", [](const Tensor& a, const Tensor& b) { return a >= b; }, [](double a, double b) { return double(a >= b); },
     -2.0, true, false},
};

/// Every element of op(a, b) in double, by index arithmetic.
Tensor reference(const Op& op, const Tensor& a, const Tensor& b) {
  const Shape sizes = broadcast_shapes(a.sizes(), b.sizes(), "test");
  Tensor out = empty(sizes, {.dtype = kFloat64});
  const auto va = a.to_vector<double>(), vb = b.to_vector<double>();
  const auto index = [&](const Tensor& t, std::int64_t i) {
    std::int64_t at = 0, step = 1;
    for (int d = 1; d <= sizes.dim(); ++d) {
      const std::int64_t size = sizes[sizes.dim() - d], position = i % size;
      i /= size;
      if (d > t.dim()) continue;
      const std::int64_t own = t.sizes()[t.dim() - d];
      if (own != 1) at += position * step;
      step *= own;
    }
    return static_cast<std::size_t>(at);
  };
  for (std::int64_t i = 0; i < out.numel(); ++i) out.data<double>()[i] = op.reference(va[index(a, i)], vb[index(b, i)]);
  return out;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case kFloat16:
      return 1e-3;
    case kBFloat16:
      return 8e-3;
    case kFloat32:
      return 3e-7;
    default:
      return 1e-14;
  }
}

class Binary : public ::testing::TestWithParam<Op> {};
INSTANTIATE_TEST_SUITE_P(Ops, Binary, ::testing::ValuesIn(kOps),
                         [](const auto& info) { return std::string(info.param.name); });

struct Pair {
  Shape a, b;
};
const std::vector<Pair> kShapes = {
    {{}, {}},          {{5}, {5}},           {{3, 4}, {3, 4}},        {{3, 4}, {4}}, {{4}, {3, 4}},
    {{3, 1}, {1, 4}},  {{2, 3, 4}, {3, 1}},  {{2, 3, 4}, {}},         {{}, {2, 3}},  {{0, 3}, {3}},
    {{3, 700}, {700}}, {{700, 3}, {700, 1}}, {{2, 1, 600}, {2, 3, 1}}};

TEST_P(Binary, BroadcastsLikeAPlainLoop) {
  const Op& op = GetParam();
  for (const Pair& shapes : kShapes)
    for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
      const Tensor a = make_input(shapes.a, 1, dtype, op.low, 2.0), b = make_input(shapes.b, 2, dtype, op.low, 2.0);
      const Tensor expected = reference(op, a, b);
      for (const Tensor& x : {a, make_strided(a)})
        for (const Tensor& y : {b, make_strided(b)}) {
          const Tensor out = op.run(x, y);
          EXPECT_EQ(out.dtype(), op.gradient ? dtype : kBool);
          expect_close(out, expected, tolerance(dtype), tolerance(dtype) * 8);
        }
    }
}

TEST_P(Binary, IntegersStayIntegers) {
  const Op& op = GetParam();
  if (!op.integers) {
    const Tensor x = tensor<std::int64_t>({7, -3}), y = tensor<std::int64_t>({2, 2});
    EXPECT_EQ(op.run(x, y).dtype(), kFloat32);
    EXPECT_EQ(op.run(x, y).to_vector<double>(), (std::vector<double>{3.5, -1.5}));
    return;
  }
  for (DType dtype : {kInt64, kInt32, kUInt8}) {
    const Tensor a = make_input({3, 600}, 1, dtype, 4.0, 9.0), b = make_input({600}, 2, dtype, 0.0, 3.9);
    const Tensor out = op.run(a, b);
    EXPECT_EQ(out.dtype(), op.gradient ? dtype : kBool);
    if (dtype != kUInt8) expect_close(out, reference(op, a, b), 0.0, 0.0);
  }
}

TEST_P(Binary, Operation) {
  const Op& op = GetParam();
  if (!op.gradient) {
    EXPECT_FALSE(op.run(make_leaf({3}), make_leaf({3})).requires_grad());
    return;
  }
  const auto of_shapes = [&](const Pair& shapes, bool a_trained, bool b_trained) {
    const auto input = [&op](const Shape& sizes, std::uint32_t seed, bool trained) {
      return trained ? make_leaf(sizes, seed, kFloat64, op.low, 2.0) : make_input(sizes, seed, kFloat64, op.low, 2.0);
    };
    return OpCase{.name = op.name,
                  .inputs =
                      [=] {
                        return TensorList{input(shapes.a, 1, a_trained), input(shapes.b, 2, b_trained)};
                      },
                  .run = [&op](const TensorList& in) { return TensorList{op.run(in[0], in[1])}; },
                  .slack = 3.0};
  };
  for (const Pair& shapes : {Pair{{3, 4}, {3, 4}}, Pair{{3, 4}, {4}}, Pair{{3, 1}, {2, 1, 4}}, Pair{{}, {3}}})
    for (const auto& [a_trained, b_trained] : {std::pair(true, true), std::pair(true, false), std::pair(false, true)})
      check_op(of_shapes(shapes, a_trained, b_trained));
  check_threads(of_shapes({{300, 333}, {333}}, true, true));
}

TEST_P(Binary, RefusesWhatDoesNotFit) {
  const Op& op = GetParam();
  const std::string name = std::string(op.name).substr(0, 3);
  const Tensor x = make_input({2, 3});
  EXPECT_NE(error_of([&] { op.run(x, make_input({2})); }).find("[" + name), std::string::npos);
  EXPECT_NE(error_of([&] { op.run(x, x.to(Device(kCPU, 1))); }).find("one device"), std::string::npos);
  EXPECT_NE(error_of([&] { op.run(x, {}); }).find("undefined"), std::string::npos);
}

// --- dtypes -------------------------------------------------------------------------------------------------------

TEST(BinaryDtypes, TwoTensorsPromote) {
  const std::vector<DType> all = {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool};
  for (DType a : all)
    for (DType b : all) {
      const Tensor x = ones({600}, {.dtype = a}), y = ones({600}, {.dtype = b});
      const Tensor product = x * y;
      EXPECT_EQ(product.dtype(), promote_types(a, b)) << name(a) << " " << name(b);
      EXPECT_EQ(product.to_vector<double>(), std::vector<double>(600, 1.0)) << name(a) << " " << name(b);
      EXPECT_EQ((x == y).to_vector<double>(), std::vector<double>(600, 1.0)) << name(a) << " " << name(b);
      EXPECT_EQ(where(x == y, x, y).dtype(), promote_types(a, b));
    }
}

TEST(BinaryDtypes, ScalarsKeepTheTensorsDtype) {
  struct Case {
    DType tensor;
    Scalar scalar;
    DType result;
  };
  for (const Case& c : {Case{kFloat32, 2.5, kFloat32}, Case{kFloat16, 2.5, kFloat16}, Case{kBFloat16, 3, kBFloat16},
                        Case{kFloat64, 2.5f, kFloat64}, Case{kInt32, 2, kInt32}, Case{kUInt8, 2, kUInt8},
                        Case{kInt64, 2.5, kFloat32}, Case{kBool, 2, kInt64}, Case{kBool, true, kBool}}) {
    const Tensor x = ones({3}, {.dtype = c.tensor});
    EXPECT_EQ((x + c.scalar).dtype(), c.result);
    EXPECT_EQ((c.scalar * x).dtype(), c.result);
    EXPECT_EQ((x * c.scalar).to_vector<double>(), std::vector<double>(3, c.scalar.to_double()));
    EXPECT_EQ((x < c.scalar).dtype(), kBool);
  }
}

TEST(BinaryDtypes, MixedGradientsComeBackInEachOperandsDtype) {
  const Tensor a = make_leaf({2, 3}, 1, kFloat16), b = make_leaf({3}, 2, kFloat32);
  const Tensor out = a * b;
  EXPECT_EQ(out.dtype(), kFloat32);
  out.backward(ones({2, 3}));
  EXPECT_EQ(a.grad().dtype(), kFloat16);
  EXPECT_EQ(b.grad().dtype(), kFloat32);
  expect_close(a.grad(), cast_values(ones({2, 3}) * b.detach(), kFloat16), 1e-3);
}

TEST(BinaryDtypes, BoolArithmetic) {
  const Tensor a = tensor<bool>({false, false, true, true}), b = tensor<bool>({false, true, false, true});
  EXPECT_EQ((a + b).to_vector<double>(), (std::vector<double>{0, 1, 1, 1}));
  EXPECT_EQ((a * b).to_vector<double>(), (std::vector<double>{0, 0, 0, 1}));
  EXPECT_NE(error_of([&] { a - b; }).find("[sub] is not defined for bool operands"), std::string::npos);
}

// Truth values are combined as bytes: dense, strided and broadcast, what integers of 0 and 1 give.
TEST(BinaryDtypes, TruthsAreTheirIntegers) {
  const Tensor numbers = make_input({40, 24}), others = make_input({24, 40}, 2);
  const Tensor a = numbers > 0.0;
  for (const Tensor& b : {Tensor(others > 0.1).view({40, 24}), Tensor(others > 0.1).t(), Tensor(others > 0.1).t()[3],
                          Tensor(others > 0.1).t().narrow(1, 2, 1)}) {
    const Tensor i = a.to(kInt64), j = b.to(kInt64);
    EXPECT_TRUE(equal(logical_and(a, b).to(kInt64), i * j));
    EXPECT_TRUE(equal(logical_or(b, a).to(kInt64), maximum(i, j)));
    EXPECT_TRUE(equal(logical_xor(a, b), i != j));
    EXPECT_TRUE(equal(a == b, i == j));
    EXPECT_TRUE(equal(logical_not(b).to(kInt64), 1 - j));
  }
  for (const Tensor& x : {a, a.t(), a.narrow(1, 0, 0), a.narrow(1, 3, 1), a == a, a != a})
    for (const Shape& dims : {Shape{0}, Shape{1}, Shape{0, 1}}) {
      EXPECT_TRUE(equal(any(x, dims).to(kInt64), (x.to(kInt64).sum(dims) > 0).to(kInt64)));
      EXPECT_TRUE(equal(all(x, dims).to(kInt64), ((1 - x.to(kInt64)).sum(dims) == 0).to(kInt64)));
    }
}

TEST(BinaryDtypes, Uint8Wraps) {
  const Tensor x = full({2}, 250, {.dtype = kUInt8});
  EXPECT_EQ((x + 10).to_vector<double>(), std::vector<double>(2, 4.0));
  EXPECT_EQ((x * 2).to_vector<double>(), std::vector<double>(2, 244.0));
}

TEST(Binary, NanReachesMaximumAndMinimum) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor a = tensor<double>({nan, 1.0, nan}), b = tensor<double>({1.0, nan, nan});
  for (const Tensor& out : {maximum(a, b), minimum(a, b)})
    for (double v : out.to_vector<double>()) EXPECT_TRUE(std::isnan(v));
}

TEST(Binary, EqualValuesShareTheGradient) {
  for (TensorFunction run : {TensorFunction(maximum), TensorFunction(minimum)}) {
    const Tensor a = make_leaf({4}, 1), b = a.detach().clone();
    b.set_requires_grad(true);
    run(a, b).backward(ones({4}, {.dtype = kFloat64}));
    EXPECT_EQ(a.grad().to_vector<double>(), std::vector<double>(4, 0.5));
    EXPECT_EQ(b.grad().to_vector<double>(), std::vector<double>(4, 0.5));
  }
}

TEST(Binary, IntegerPowers) {
  const Tensor base = tensor<std::int64_t>({3, -2, 1, -1, 5}), exponent = tensor<std::int64_t>({4, 5, -3, -3, -1});
  EXPECT_EQ(pow(base, exponent).to_vector<std::int64_t>(), (std::vector<std::int64_t>{81, -32, 1, -1, 0}));
}

// --- scalars ------------------------------------------------------------------------------------------------------

struct ScalarOp {
  const char* name;
  Tensor (*run)(const Tensor&);
  double (*reference)(double);
};

const std::vector<ScalarOp> kScalarOps = {
    {"add", [](const Tensor& x) { return x + 2.5; }, [](double x) { return x + 2.5; }},
    {"radd", [](const Tensor& x) { return 2.5 + x; }, [](double x) { return x + 2.5; }},
    {"sub", [](const Tensor& x) { return x - 2.5; }, [](double x) { return x - 2.5; }},
    {"rsub", [](const Tensor& x) { return 2.5 - x; }, [](double x) { return 2.5 - x; }},
    {"mul", [](const Tensor& x) { return x * 2.5; }, [](double x) { return x * 2.5; }},
    {"rmul", [](const Tensor& x) { return 2.5 * x; }, [](double x) { return x * 2.5; }},
    {"div", [](const Tensor& x) { return x / 2.5; }, [](double x) { return x / 2.5; }},
    {"rdiv", [](const Tensor& x) { return 2.5 / x; }, [](double x) { return 2.5 / x; }},
    {"rpow", [](const Tensor& x) { return pow(2.5, x); }, [](double x) { return std::pow(2.5, x); }},
    {"where", [](const Tensor& x) { return where(x > 1.0, x, 7.0); }, [](double x) { return x > 1.0 ? x : 7.0; }},
    {"rwhere", [](const Tensor& x) { return where(x > 1.0, 7.0, x); }, [](double x) { return x > 1.0 ? 7.0 : x; }},
};

class WithScalar : public ::testing::TestWithParam<ScalarOp> {};
INSTANTIATE_TEST_SUITE_P(Ops, WithScalar, ::testing::ValuesIn(kScalarOps),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(WithScalar, ValuesAndGradients) {
  const ScalarOp& op = GetParam();
  for (const Shape& sizes : {Shape{}, Shape{5}, Shape{3, 700}, Shape{0}})
    for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
      const Tensor x = make_input(sizes, 4, dtype, 0.5, 2.0);
      Tensor expected = cast_values(x, kFloat64).clone();
      for (std::int64_t i = 0; i < x.numel(); ++i)
        expected.data<double>()[i] = op.reference(expected.data<double>()[i]);
      for (const Tensor& input : {x, make_strided(x)}) {
        EXPECT_EQ(op.run(input).dtype(), dtype);
        expect_close(op.run(input), expected, tolerance(dtype));
      }
    }
  check_op({.name = op.name,
            .inputs =
                [] {
                  return TensorList{make_leaf({3, 4}, 4, kFloat64, 0.5, 2.0)};
                },
            .run = [&](const TensorList& in) { return TensorList{op.run(in[0])}; }});
}

TEST(BinaryScalars, ComparisonsFromBothSides) {
  const Tensor x = tensor<float>({1.0f, 2.0f, 3.0f});
  using V = std::vector<double>;
  EXPECT_EQ((x == 2).to_vector<double>(), (V{0, 1, 0}));
  EXPECT_EQ((2 == x).to_vector<double>(), (V{0, 1, 0}));
  EXPECT_EQ((x != 2).to_vector<double>(), (V{1, 0, 1}));
  EXPECT_EQ((2 != x).to_vector<double>(), (V{1, 0, 1}));
  EXPECT_EQ((x < 2).to_vector<double>(), (V{1, 0, 0}));
  EXPECT_EQ((2 < x).to_vector<double>(), (V{0, 0, 1}));
  EXPECT_EQ((x <= 2).to_vector<double>(), (V{1, 1, 0}));
  EXPECT_EQ((2 <= x).to_vector<double>(), (V{0, 1, 1}));
  EXPECT_EQ((x > 2).to_vector<double>(), (V{0, 0, 1}));
  EXPECT_EQ((2 > x).to_vector<double>(), (V{1, 0, 0}));
  EXPECT_EQ((x >= 2).to_vector<double>(), (V{0, 1, 1}));
  EXPECT_EQ((2 >= x).to_vector<double>(), (V{1, 1, 0}));
}

// --- where --------------------------------------------------------------------------------------------------------

TEST(Where, BroadcastsAllThree) {
  const Tensor condition = make_input({3, 1}, 1) > 0.0;
  const Tensor a = make_leaf({4}, 2), b = make_leaf({2, 1, 1}, 3);
  const Tensor out = where(condition, a, b);
  ASSERT_EQ(to_string(out.sizes()), "[2, 3, 4]");
  const auto c = condition.to_vector<double>(), va = a.to_vector<double>(), vb = b.to_vector<double>();
  const auto v = out.to_vector<double>();
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(v[i], c[i / 4 % 3] != 0.0 ? va[i % 4] : vb[i / 12]);
  gradcheck([&](const std::vector<Tensor>& in) { return where(condition, in[0], in[1]); }, {a, b});
}

TEST(Where, DoesNotLetNanThrough) {
  const Tensor x = make_leaf({2}, 1);
  const Tensor grad = tensor<double>({std::numeric_limits<double>::infinity(), 1.0});
  where(tensor<bool>({false, true}), x, 0.0).backward(grad);
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0.0, 1.0}));
}

TEST(Where, WantsABoolCondition) {
  const Tensor x = make_input({3});
  EXPECT_NE(error_of([&] { where(x, x, x); }).find("[where] expected a bool condition, found float64"),
            std::string::npos);
}

TEST(Xlogy, PromotesAsOtherOperationsOfTwoTensors) {
  const DType all[] = {kFloat64, kFloat32, kFloat16, kInt64};
  for (const DType a : all)
    for (const DType b : all)
      for (const Shape& sizes : {Shape{}, Shape{3}})
        EXPECT_EQ(xlogy(ones({3}, {.dtype = a}), ones(sizes, {.dtype = b})).dtype(),
                  hypot(ones({3}, {.dtype = a}), ones(sizes, {.dtype = b})).dtype())
            << name(a) << " " << name(b) << " " << sizes;
}

}  // namespace
}  // namespace lockstep
