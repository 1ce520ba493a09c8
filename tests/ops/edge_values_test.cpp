// Where types, ranges, infinities and NaN meet: what PyTorch gives there, on any device.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

class EdgeValues : public ::testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE(); }

  static Tensor number(double value, DType dtype) {
    return scalar_tensor(value, {.dtype = dtype, .device = test_device()});
  }
  static Tensor filled(const Shape& sizes, DType dtype, double value = 1) {
    return full(sizes, value, {.dtype = dtype, .device = test_device()});
  }
  static Tensor values(const std::vector<double>& values, DType dtype = kFloat32) {
    return move_values(cast_values(tensor(values), dtype), test_device());
  }
  static Tensor leaf(const std::vector<double>& list, DType dtype = kFloat32) {
    const Tensor x = values(list, dtype);
    x.set_requires_grad(true);
    return x;
  }
  static void backward(const Tensor& y) { y.backward(filled(y.sizes(), y.dtype())); }
};

TEST_F(EdgeValues, ATensorWithoutDimensionsPromotesLikeANumber) {
  EXPECT_EQ((number(2, kFloat64) * filled({3}, kFloat32)).dtype(), kFloat32);
  EXPECT_EQ((filled({3}, kFloat16) * number(2, kFloat32)).dtype(), kFloat16);
  EXPECT_EQ((filled({3}, kInt32) + number(2, kInt64)).dtype(), kInt32);
  EXPECT_EQ((filled({3}, kUInt8) + number(2, kBool)).dtype(), kUInt8);
  EXPECT_EQ((filled({3}, kInt64) * number(2, kFloat64)).dtype(), kFloat64);
  EXPECT_EQ((filled({3}, kBool) + number(2, kInt32)).dtype(), kInt32);
  EXPECT_EQ((number(2, kFloat32) * number(2, kFloat64)).dtype(), kFloat64);
  EXPECT_EQ((filled({3}, kFloat16) * filled({1}, kFloat32)).dtype(), kFloat32);
  EXPECT_EQ(where(filled({3}, kBool), filled({3}, kFloat16), number(2, kFloat64)).dtype(), kFloat16);

  const Tensor x = leaf({1, 2, 3}, kFloat16), scale = number(0.5, kFloat64);
  scale.set_requires_grad(true);
  backward(x * scale);
  EXPECT_EQ(x.grad().dtype(), kFloat16);
  EXPECT_EQ(scale.grad().dtype(), kFloat64);
  EXPECT_EQ(scale.grad().item(), 6.0);
}

TEST_F(EdgeValues, NumbersOutOfAnIntegersRangeAreRefused) {
  const Tensor bytes = filled({3}, kUInt8), chosen = filled({3}, kBool);
  EXPECT_EQ(error_of([&] { clamp(bytes, {}, 300); }), "[clamp] 300 is out of the range of uint8, 0 to 255");
  EXPECT_EQ(error_of([&] { clamp(bytes, -1); }), "[clamp] -1 is out of the range of uint8, 0 to 255");
  EXPECT_EQ(error_of([&] { filled({1}, kUInt8, 300); }), "[full] 300 is out of the range of uint8, 0 to 255");
  EXPECT_EQ(error_of([&] { where(chosen, Scalar(300), bytes); }), "[where] 300 is out of the range of uint8, 0 to 255");
  EXPECT_NE(error_of([&] { bytes.fill_(256); }).find("out of the range of uint8"), std::string::npos);
  EXPECT_NE(error_of([&] { filled({1}, kInt32, 0x1p31); }).find("out of the range of int32"), std::string::npos);
  EXPECT_NE(error_of([&] { filled({1}, kInt64, 0x1p63); }).find("out of the range of int64"), std::string::npos);
  EXPECT_NE(error_of([&] { filled({1}, kInt64, kNan); }).find("out of the range of int64"), std::string::npos);
  EXPECT_EQ(filled({1}, kInt64, -0x1p63).to_vector<std::int64_t>()[0], std::numeric_limits<std::int64_t>::lowest());
  EXPECT_EQ(filled({1}, kUInt8, 255).to_vector<double>()[0], 255);

  const Tensor whole = filled({3}, kInt64);
  EXPECT_EQ(error_of([&] { add(whole, whole, 2.5); }),
            "[add] expected a whole alpha for int64 tensors, found 2.5; convert one to a floating-point dtype");
  EXPECT_NE(error_of([&] { whole.add_(whole, 0.5); }).find("[add_] expected a whole alpha"), std::string::npos);
  EXPECT_EQ(add(whole, whole, 2.0).to_vector<double>()[0], 3);
  EXPECT_EQ(error_of([&] { chosen - true; }), "[sub] is not defined for bool operands; use ne() for exclusive or");
  EXPECT_NE(error_of([&] { true - chosen; }).find("[sub] is not defined for bool"), std::string::npos);
  EXPECT_NE(error_of([&] { chosen.clone() -= true; }).find("[-=] is not defined for bool"), std::string::npos);
}

TEST_F(EdgeValues, ANonFinitePixelReachesOnlyTheTapsThatSeeIt) {
  for (const std::int64_t side : {5, 8, 11, 12}) {
    const Tensor x = make_input({1, 1, side, side}, 1, kFloat32), w = make_leaf({8, 1, 3, 3}, 2, kFloat32);
    x.data<float>()[2] = static_cast<float>(kInf);  // in the first row: the taps of the last two rows never see it
    const Tensor image = move_values(x, test_device()), kernel = move_values(w.detach(), test_device());
    kernel.set_requires_grad(true);
    backward(conv2d(image, kernel));
    const std::vector<double> grad = kernel.grad().to_vector<double>();
    for (std::size_t i = 0; i < grad.size(); ++i) EXPECT_EQ(std::isfinite(grad[i]), i % 9 >= 3) << side << ", " << i;
  }
}

TEST_F(EdgeValues, BroadcastGradientsOfHalfTypesAreSummedInFloat) {
  for (const DType dtype : {kFloat16, kBFloat16}) {
    const double tolerance = dtype == kFloat16 ? 1e-3 : 8e-3;
    const auto check = [&](const std::function<Tensor(const Tensor&, const Tensor&)>& op, const Shape& a,
                           const Shape& b) {
      Tensor grads[2];
      for (const DType d : {dtype, kFloat64}) {
        const auto make = [&](const Shape& sizes, std::uint32_t seed) {
          return move_values(cast_values(make_input(sizes, seed, dtype, 0.5, 1.5), d), test_device());
        };
        const Tensor x = make(a, 1), y = make(b, 2);
        y.set_requires_grad(true);
        const Tensor out = op(x, y);
        out.backward(make(out.sizes(), 3));
        grads[d == kFloat64] = y.grad();
      }
      expect_close(grads[0], grads[1], tolerance, 0);
    };
    check([](const Tensor& x, const Tensor& y) { return matmul(x, y); }, {50, 5, 5}, {1, 5, 5});
    check([](const Tensor& x, const Tensor& y) { return matmul(y, x); }, {50, 5, 5}, {1, 5, 5});
    check([](const Tensor& x, const Tensor& y) { return x * y; }, {300, 4}, {4});
    check([](const Tensor& x, const Tensor& y) { return x / y; }, {300, 4}, {4});
    check([](const Tensor& x, const Tensor& y) { return pow(x, y); }, {300, 4}, {1, 1});
  }
}

TEST_F(EdgeValues, ExtremaPassGradientsToNan) {
  const Tensor a = leaf({kNan, 1, 2, 2}), b = leaf({1, kNan, 2, 3});
  for (const bool largest : {true, false}) {
    a.set_grad({});
    b.set_grad({});
    backward(largest ? maximum(a, b) : minimum(a, b));
    const double larger = largest ? 1 : 0;
    expect_close(a.grad(), tensor<double>({1, 1, 0.5, 1 - larger}), 0, 0);
    expect_close(b.grad(), tensor<double>({1, 1, 0.5, larger}), 0, 0);
  }
  const Tensor x = leaf({3, kNan, 1, kNan});
  backward(max(x));
  expect_close(x.grad(), tensor<double>({0, 0.5, 0, 0.5}), 0, 0);
  x.set_grad({});
  backward(min(x));
  expect_close(x.grad(), tensor<double>({0, 0.5, 0, 0.5}), 0, 0);
}

TEST_F(EdgeValues, ANanBoundOfClampIsTheResult) {
  const Tensor x = leaf({-1, 0, 2, kNan});
  for (const Tensor& y : {clamp(x, kNan), clamp(x, {}, kNan), clamp(x, kNan, 1.0), clamp(x, 0.0, kNan)}) {
    expect_close(y, tensor<double>({kNan, kNan, kNan, kNan}), 0, 0);
    x.set_grad({});
    backward(y);
    expect_close(x.grad(), tensor<double>({0, 0, 0, 0}), 0, 0);
  }
}

TEST_F(EdgeValues, TanhKeepsTheSignOfZero) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16})
    EXPECT_TRUE(std::signbit(tanh(values({-0.0}, dtype)).to_vector<double>()[0])) << name(dtype);
}

TEST_F(EdgeValues, CrossEntropyOfInfiniteLogitsHasATargetGradient) {
  const Tensor x = values({kInf, -kInf, 2}), pos_weight = values({0.5, 0.5, 0.5});
  for (const bool weighted : {false, true}) {
    const Tensor target = leaf({0.5, 0.5, 0.5});
    BceWithLogitsOptions options{.reduction = Reduction::sum};
    if (weighted) options.pos_weight = pos_weight;
    binary_cross_entropy_with_logits(x, target, options).backward();
    const double at_2 = weighted ? 0.5 * std::log1p(std::exp(-2.0)) - std::log1p(std::exp(2.0)) : -2.0;
    expect_close(target.grad(), tensor<double>({-kInf, kInf, at_2}), 1e-6, 0);
  }
}

TEST_F(EdgeValues, VarianceWithoutDegreesOfFreedom) {
  const Tensor x = leaf({1, 2, 3});
  backward(var(x, {}, 5.0));
  expect_close(x.grad(), tensor<double>({kInf, kNan, kInf}), 0, 0);
  x.set_grad({});
  backward(var(x, {0}, 5.0));
  expect_close(x.grad(), tensor<double>({1, 0, -1}), 1e-6, 0);
  expect_close(var(x, {0}, 5.0), number(kInf, kFloat32), 0, 0);
}

TEST_F(EdgeValues, LayerNormFarFromZero) {
  const Tensor exact = make_input({4, 100}, 1, kFloat32, 1e4, 1e4 + 1);
  const auto normalise = [](const Tensor& t, const Tensor& upstream) {
    const Tensor x = move_values(t, test_device());
    x.set_requires_grad(true);
    const Tensor y = layer_norm(x, {100});
    y.backward(move_values(upstream, test_device()));
    return std::vector<Tensor>{y, x.grad()};
  };
  const Tensor upstream = make_input({4, 100}, 2, kFloat32);
  const std::vector<Tensor> narrow = normalise(exact, upstream);
  const std::vector<Tensor> wide = normalise(cast_values(exact, kFloat64), cast_values(upstream, kFloat64));
  for (std::size_t i = 0; i < 2; ++i) expect_close(narrow[i], wide[i], 1e-5, 2e-5);
}

TEST_F(EdgeValues, ExtremaWithANumber) {
  const Tensor x = leaf({-1, 0, 2});
  backward(maximum(x, 0));
  expect_close(x.grad(), tensor<double>({0, 0.5, 1}), 0, 0);
  EXPECT_EQ(minimum(x, 0.5).to_vector<double>(), (std::vector<double>{-1, 0, 0.5}));
  EXPECT_EQ(maximum(filled({2}, kInt64), 0.5).dtype(), kFloat32);
  EXPECT_EQ(maximum(filled({2}, kUInt8), 3).dtype(), kUInt8);
}

TEST_F(EdgeValues, ClassProbabilitiesAsTargetsOfCrossEntropy) {
  const Tensor x = move_values(make_input({4, 3}, 1), test_device());
  const Tensor classes = move_values(tensor<std::int64_t>({2, 0, 1, 2}), test_device());
  const Tensor certain =
      move_values(cast_values(eq(arange(3).view({1, 3}), tensor<std::int64_t>({2, 0, 1, 2}).view({4, 1})), kFloat64),
                  test_device());
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.reduction = reduction, .label_smoothing = smoothing};
      expect_close(cross_entropy(x, certain, options), cross_entropy(x, classes, options), 1e-12, 1e-12);
    }
  EXPECT_NE(error_of([&] {
              cross_entropy(x, values({1, 2, 3, 4}, kFloat64));
            }).find("a probability for each class"),
            std::string::npos);
}

// A number is not taken through double, which has no odd integers above 2^53.
TEST_F(EdgeValues, IntegersAbove2To53StayWhatTheyAre) {
  const std::int64_t big = (std::int64_t{1} << 53) + 1;
  const TensorOptions options{.dtype = kInt64, .device = test_device()};
  const Tensor zero = zeros({2}, options), first = move_values(tensor<std::int64_t>({0}), test_device());
  const Tensor chosen = move_values(tensor({true, false}), test_device());
  using Integers = std::vector<std::int64_t>;
  const auto integers = [](const Tensor& x) { return x.to_vector<std::int64_t>(); };
  EXPECT_EQ(integers(full({2}, big, options)), (Integers{big, big}));
  EXPECT_EQ(integers(full({1}, big, kInt64)), (Integers{big}));
  EXPECT_EQ(integers(full_like(zero, -big)), (Integers{-big, -big}));
  EXPECT_EQ(integers(scalar_tensor(big, options)), (Integers{big}));
  EXPECT_EQ(integers(arange(big, big + 4, 2, options)), (Integers{big, big + 2}));
  EXPECT_EQ(integers(zero.clone().fill_(big)), (Integers{big, big}));
  EXPECT_EQ(integers(zero.clone().add_(big)), (Integers{big, big}));
  EXPECT_EQ(integers(zero.clone().sub_(big)), (Integers{-big, -big}));
  EXPECT_EQ(integers(ones({2}, options).mul_(big)), (Integers{big, big}));
  EXPECT_EQ(integers(zero.clone().masked_fill_(chosen, big)), (Integers{big, 0}));
  EXPECT_EQ(integers(masked_fill(zero, chosen, big)), (Integers{big, 0}));
  EXPECT_EQ(integers(where(chosen, big, 1)), (Integers{big, 1}));
  EXPECT_EQ(integers(where(chosen, big, zero)), (Integers{big, 0}));
  EXPECT_EQ(integers(scatter(zero, 0, first, big)), (Integers{big, 0}));
  EXPECT_EQ(integers(index_fill(zero, 0, first, big)), (Integers{big, 0}));
  EXPECT_EQ(integers(maximum(zero, big)), (Integers{big, big}));
  EXPECT_EQ(integers(minimum(zero, -big)), (Integers{-big, -big}));
  const Tensor x = zeros({2}, options);
  x[0] = big;
  EXPECT_EQ(integers(x), (Integers{big, 0}));
  const Tensor sorted = tensor<std::int64_t>({big - 1, big, big + 1});
  EXPECT_EQ(searchsorted(sorted, big).item<int>(), 1);
  EXPECT_NE(error_of([&] { full({1}, std::uint64_t{1} << 63, kInt64); }).find("out of the range"), std::string::npos);
}

// Neither what is clamped nor what lies on a bound has a slope, as in PyTorch 2.15; a NaN has none either.
TEST_F(EdgeValues, ClampHasNoSlopeAtItsBounds) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    const auto slopes = [&](auto&& function) {
      const Tensor x = leaf({1, -1, 0.5, kNan, 2, kInf, -kInf}, dtype);
      backward(function(x));
      return x.grad();
    };
    expect_close(slopes([](const Tensor& x) { return clamp(x, -1, 1); }), values({0, 0, 1, 0, 0, 0, 0}, dtype), 0, 0);
    expect_close(slopes([](const Tensor& x) { return x.clamp_max(1); }), values({0, 1, 1, 0, 0, 0, 1}, dtype), 0, 0);
    expect_close(slopes([](const Tensor& x) { return x.clamp_min(-1); }), values({1, 0, 1, 0, 1, 1, 0}, dtype), 0, 0);
  }
}

// PyTorch 2.15's, which says what a slope is beside something infinite.
TEST_F(EdgeValues, CumprodOfOneElementPassesItsGradientOn) {
  const Tensor x = leaf({-kInf});
  backward(cumprod(x, 0));
  expect_close(x.grad(), values({1}), 0, 0);
  const Tensor rows = leaf({kInf, std::nan(""), 2});
  backward(cumprod(rows.view({3, 1}), 1));
  expect_close(rows.grad(), values({1, 1, 1}), 0, 0);
}

TEST_F(EdgeValues, CumprodAtItsFirstZeroBesideInfinities) {
  const Tensor x = leaf({0.5, -kInf, -2, 0, kInf});
  cumprod(x, 0).backward(values({1, 0, 1, 0, 3}));
  expect_close(x.grad().narrow(0, 2, 3), values({-kInf, kInf, 0}), 0, 0);
}

TEST_F(EdgeValues, LerpByTensorMeetsBothEndsAndKeepsInfiniteOnes) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    const Tensor a = leaf({-kInf, 1e8, 3, -1}, dtype), b = leaf({3, 1, kInf, 3}, dtype);
    const Tensor weight = leaf({0.5, 1, 0.25, 0.75}, dtype), out = lerp(a, b, weight);
    expect_close(out, values({-kInf, 1, kInf, 2}, dtype), 0, 0);
    out.backward(values({1, 1, 1, kInf}, dtype));
    expect_close(a.grad(), values({0.5, 0, 0.75, kInf}, dtype), 0, 0);
    expect_close(b.grad(), values({0.5, 1, 0.25, kInf}, dtype), 0, 0);
    expect_close(weight.grad(), values({kInf, 1 - 1e8, kInf, kInf}, dtype), 1e-7, 0);
  }
}

TEST_F(EdgeValues, CdistWhereCoordinatesTieOrAreEqual) {
  const auto slopes = [](const std::vector<double>& row, const std::vector<double>& other, double order) {
    const Tensor a = leaf(row), b = values(other);
    backward(cdist(a.view({1, -1}), b.view({1, -1}), order));
    return a.grad();
  };
  expect_close(slopes({0, 1, 3}, {2, 3, 3}, kInf), values({-1, -1, 0}), 0, 0);
  expect_close(slopes({0, 1, kInf}, {2, 1, 3}, 0.5).narrow(0, 0, 2), values({-kInf, 0}), 0, 0);
  EXPECT_NE(error_of([] {
              cdist(ones({2, 3}), ones({2, 3}), -1.0);
            }).find("an order of at least 0, found -1"),
            std::string::npos);
}

TEST_F(EdgeValues, NothingPassesToWhatIsNotSelected) {
  const auto slopes = [](auto&& f, const std::vector<double>& at, DType dtype = kFloat32) {
    const Tensor x = leaf(at, dtype), y = f(x);
    y.backward(filled(y.sizes(), y.dtype(), kInf));
    return x.grad();
  };
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    const Tensor bound = filled({3}, dtype, 0), expected = values({0, kInf, kInf}, dtype);
    const auto at = [&](auto&& f, double sign) { return slopes(f, {-sign, sign, 0}, dtype); };
    expect_close(at([&](const Tensor& x) { return maximum(x, bound); }, 1), expected, 0, 0);
    expect_close(at([&](const Tensor& x) { return minimum(bound, x); }, -1), expected, 0, 0);
    expect_close(at([&](const Tensor& x) { return maximum(x, 0.0); }, 1), expected, 0, 0);
    expect_close(at([&](const Tensor& x) { return x.clamp(bound); }, 1), expected, 0, 0);
    expect_close(at([&](const Tensor& x) { return maximum(x * 2.0, bound) * 3.0; }, 1), expected, 0, 0);
  }
  expect_close(slopes([](const Tensor& x) { return x.max(); }, {-1, 4, 2}), values({0, kInf, 0}), 0, 0);
  expect_close(slopes([](const Tensor& x) { return x.min(); }, {-1, 4, -1}), values({kInf, 0, kInf}), 0, 0);
  const auto half = [](const Tensor& x) { return x.to(kBFloat16).max(); };  // no kernel of its own
  expect_close(slopes(half, {-1, 4, 2}), values({0, kInf, 0}), 0, 0);
  // PyTorch's amax() multiplies.
  EXPECT_TRUE(std::isnan(slopes([](const Tensor& x) { return amax(x, {0}); }, {-1, 4})[0].item<double>()));
  const Tensor x = leaf({-1, 4}), y = maximum(x, filled({2}, kFloat32, 0)) + x.max();
  const Tensor g = grad({y}, {x}, {filled({2}, kFloat32, kInf)}, {.create_graph = true})[0];
  expect_close(g, values({0, kInf}), 0, 0);
}

TEST_F(EdgeValues, RunningSumsAreKeptInDouble) {
  constexpr std::int64_t kMany = 100000;
  const auto last = [](const Tensor& x) { return x.select(-1, kMany - 1); };
  for (const std::int64_t rows : {1, 8, 3}) {
    const Tensor x = filled({rows, kMany}, kFloat32, 1e-5).requires_grad_(), sums = cumsum(x, 1);
    expect_close(last(sums), filled({rows}, kFloat32, 1), 0, 0);
    sums.backward(filled({rows, kMany}, kFloat32, 1e-5));
    expect_close(x.grad().select(1, 0), filled({rows}, kFloat32, 1), 0, 0);
    const Tensor factors = filled({rows, kMany}, kFloat32, 1 + 0x1p-23);
    expect_close(last(cumprod(factors, 1)), filled({rows}, kFloat32, 1.0119922), 1e-7, 0);
    expect_close(last(cumsum(x.detach().t().contiguous(), 0).t()), filled({rows}, kFloat32, 1), 0, 0);
  }
  expect_close(last(logcumsumexp(filled({kMany}, kFloat32, 0), 0)), number(11.512925465, kFloat32), 0, 0);
}

TEST_F(EdgeValues, AddcmulAndAddcdivTakeTheDtypeOfAllThree) {
  const Tensor one = number(1, kFloat64).view({1}), many = filled({1}, kFloat16, 300);
  expect_close(addcmul(one, many, many), values({90001}, kFloat64), 0, 0);
  expect_close(one.clone().addcmul_(many, many), values({90001}, kFloat64), 0, 0);
  const Tensor third = addcdiv(one, filled({1}, kFloat16), number(3, kFloat64));
  expect_close(third, values({1.0 + 1.0 / 3.0}, kFloat64), 1e-15, 0);
  expect_close(one.clone().addcdiv_(filled({1}, kFloat16), number(3, kFloat64)), third, 0, 0);
  const Tensor large = filled({1}, kInt32, 2e9), two = filled({1}, kInt32, 2);
  expect_close(addcmul(filled({1}, kFloat32, 0), large, two), values({4e9}), 0, 0);
  EXPECT_EQ(addcmul(filled({2}, kFloat16), number(3, kFloat32), filled({2}, kFloat16)).dtype(), kFloat16);
  EXPECT_EQ(addcmul(number(1, kFloat64), filled({2}, kFloat32), filled({2}, kFloat32)).dtype(), kFloat32);
  const Tensor a = leaf({300}, kFloat16), b = leaf({2}, kFloat16);
  backward(addcmul(one, a, b, 0.1));
  expect_close(a.grad(), values({0.2}, kFloat16), 0, 0);
  expect_close(b.grad(), values({30}, kFloat16), 0, 0);
}

TEST_F(EdgeValues, ADimensionThatKeepsItsSizeIsCopiedWhateverTheFactor) {
  const Tensor row = leaf({0, 1}), out = interpolate(row.view({1, 1, 2}), {.scale_factor = 1.3, .mode = kLinear});
  expect_close(out.view({2}), values({0, 1}), 0, 0);
  out.backward(values({3, 5}).view({1, 1, 2}));
  expect_close(row.grad(), values({3, 5}), 0, 0);
  const Tensor image = move_values(arange(20, kFloat32), test_device()).view({1, 1, 2, 10});
  const Tensor wider = interpolate(image, {.scale_factor = 1.3, .mode = kBilinear});
  ASSERT_EQ(wider.sizes(), (Shape{1, 1, 2, 13}));
  expect_close(wider.select(3, 0).view({2}), values({0, 10}), 0, 0);
  const Tensor volume = image.view({1, 1, 2, 5, 2});
  const Tensor deeper = interpolate(volume, {.scale_factor = 1.3, .mode = kTrilinear});
  ASSERT_EQ(deeper.sizes(), (Shape{1, 1, 2, 6, 2}));
  expect_close(deeper.select(3, 0), volume.select(3, 0), 0, 0);
}

TEST_F(EdgeValues, WholeFloatsMakeIntegersFloat) {
  const Tensor x = values({4, 9}, kInt64);
  EXPECT_EQ(clamp_min(x, 5.0).dtype(), kFloat32);
  EXPECT_EQ(clamp_max(x, 5.0).dtype(), kFloat32);
  EXPECT_EQ(maximum(x, 5.0).dtype(), kFloat32);
  EXPECT_EQ(clamp_min(x, 5).dtype(), kInt64);
  EXPECT_EQ(minimum(x, 5).dtype(), kInt64);
}

TEST_F(EdgeValues, BincountCountsInDouble) {
  const Tensor x = values({0, 1, 1}, kInt64), none = values({}, kInt64);
  expect_close(bincount(x, values({1, 2, 3}, kInt64)), values({1, 5}, kFloat64), 0, 0);
  EXPECT_EQ(bincount(x, values({1, 2, 3}, kFloat16)).dtype(), kFloat64);
  EXPECT_EQ(bincount(x, values({1, 2, 3})).dtype(), kFloat32);
  EXPECT_EQ(bincount(none, values({}), 2).dtype(), kInt64);
  for (const std::int64_t length : {0, 3})
    expect_close(bincount(none, {}, length), zeros({length}, {.dtype = kInt64, .device = test_device()}), 0, 0);
  EXPECT_EQ(bincount(x).dtype(), kInt64);
}

}  // namespace
}  // namespace lockstep::testing
