// Where second derivatives are easily wrong: flat parts, points without a slope, tensors that change, graphs that are
// gone.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

Tensor leaf(std::initializer_list<double> values, const Shape& sizes) {
  return tensor<double>(values).view(sizes).clone().requires_grad_();
}
Tensor leaf(std::initializer_list<double> values) {
  return leaf(values, {static_cast<std::int64_t>(values.size())});
}
Tensor recorded(const Tensor& y, const Tensor& x, const std::vector<Tensor>& seed = {}) {
  return grad({y}, {x}, seed, {.create_graph = true})[0];
}

TEST(SecondDerivativeEdges, AnIndexThatChangedIsRefused) {
  const auto expect_refusal = [](const auto& compute, const Tensor& index, const Tensor& x, const Shape& sizes) {
    const Tensor seed = ones(sizes, kFloat64).requires_grad_();
    const Tensor g = recorded(compute(x, index), x, {seed});
    index.fill_(0);
    EXPECT_NE(error_of([&] { g.sum().backward(); }).find("changed in place"), std::string::npos);
  };
  const auto positions = [] { return tensor<std::int64_t>({0, 1, 1}); };
  const Tensor x = leaf({1, 2, 3});
  expect_refusal([](const Tensor& a, const Tensor& i) { return a.gather(0, i); }, positions(), x, {3});
  expect_refusal([](const Tensor& a, const Tensor& i) { return a.index_select(0, i); }, positions(), x, {3});
  const Tensor table = leaf({1, 2, 3, 4}, {2, 2}), scores = leaf({1, 2, 3, 4, 5, 6}, {3, 2});
  expect_refusal([](const Tensor& a, const Tensor& i) { return embedding(a, i); }, positions(), table, {3, 2});
  expect_refusal([](const Tensor& a, const Tensor& i) { return nll_loss(a, i, {.reduction = Reduction::none}); },
                 positions(), scores, {3});
}

TEST(SecondDerivativeEdges, RecordedGradientsAreThePlainOnesAtPointsWithoutASlope) {
  const auto expect_same = [](const auto& compute, const Tensor& x) {
    expect_close(recorded(compute(x).sum(), x).detach(), grad({compute(x).sum()}, {x})[0]);
  };
  expect_same([](const Tensor& x) { return pow(0.0, x); }, leaf({0, 1, 2, 0.5}));
  expect_same([](const Tensor& x) { return atan2(x, x); }, leaf({0, 1}));
  expect_same([](const Tensor& x) { return sqrt(abs(floor(x))); }, leaf({0, 1}));
  expect_same([](const Tensor& x) { return sqrt(pow(x, 0.0) - 1.0); }, leaf({0, 1}));
  expect_same([](const Tensor& x) { return logsumexp(x, {0}); }, leaf({-INFINITY, -INFINITY}));
}

TEST(SecondDerivativeEdges, NothingThatCountsHasNoSlope) {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor loss = cross_entropy(x, tensor<std::int64_t>({1, 1}), {.ignore_index = 1});
  const Tensor g = recorded(loss, x);
  EXPECT_EQ(g.abs().sum().item<double>(), 0.0);
  EXPECT_EQ(grad({g.sum()}, {x})[0].abs().sum().item<double>(), 0.0);
}

TEST(SecondDerivativeEdges, AThirdPassMayFollowARelease) {
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2}), v = leaf({1, 1}), w = leaf({1, 2, 3, 4}, {2, 2}), u = leaf({5, 6});
  const Tensor y = nll_loss(x, tensor<std::int64_t>({0, 1}), {.reduction = Reduction::none});
  const Tensor g = recorded(y, x, {v});
  y.backward(ones({2}, kFloat64));
  const Tensor h = recorded(g, v, {w});
  expect_close(h.detach(), tensor<double>({-1, -4}));
  expect_close(recorded(h, w, {u}).detach(), tensor<double>({-5, 0, 0, -6}).view({2, 2}));
}

TEST(SecondDerivativeEdges, ImagesOfAColumnHaveOne) {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3, 1}), flat = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor target = tensor<std::int64_t>({1, 2});
  const auto second = [](const Tensor& loss, const Tensor& in) {
    return grad({recorded(loss, in).square().sum()}, {in})[0];
  };
  expect_close(second(cross_entropy(x, target.view({2, 1})), x).view({2, 3}),
               second(cross_entropy(flat, target), flat));
  const Tensor none = zeros({2, 3, 0, 2}, kFloat64).requires_grad_();
  const Tensor loss = cross_entropy(none, zeros({2, 0, 2}, kInt64), {.reduction = Reduction::sum});
  EXPECT_EQ(recorded(loss, none).sizes(), none.sizes());
}

TEST(SecondDerivativeEdges, FlatPartsKeepTheirInputs) {
  const Tensor x = leaf({1, 2, 3}), w = leaf({1, 2, 3});
  const auto expect_second = [&](const Tensor& y) {
    const auto g = grad({recorded(y.sum(), x).square().sum()}, {x, w});
    expect_close(g[0], zeros({3}, kFloat64));
    expect_close(g[1], 2.0 * w.detach());
  };
  expect_second(relu(x * w));
  expect_second(abs(x * w));
  expect_second(maximum(x * w, zeros({3}, kFloat64)));
  expect_second(clamp(x * w, 0.0, 100.0));
  expect_second(max_pool2d((x * w).view({1, 1, 1, 3}), 1));
  const Tensor image = leaf({1, 2, 3, 4}, {1, 1, 2, 2});
  const Tensor slope = recorded(max_pool2d(image, 2).sum(), image);
  expect_close(slope.detach(), tensor<double>({0, 0, 0, 1}).view({1, 1, 2, 2}));
  expect_close(grad({slope.sum()}, {image})[0], zeros({1, 1, 2, 2}, kFloat64));
}

TEST(SecondDerivativeEdges, OnOneSideOfACornerAreThoseOfPyTorch) {
  const auto derivatives = [](const auto& compute, double at, int count) {
    const Tensor x = leaf({at});
    Tensor y = compute(x);
    std::vector<double> values;
    for (int i = 0; i < count; ++i) {
      y = recorded(y, x);
      values.push_back(y.item<double>());
    }
    return values;
  };
  using Values = std::vector<double>;
  EXPECT_EQ(derivatives([](const Tensor& x) { return elu(x, 0.5); }, 0.0, 3), (Values{0.5, 0, 0}));
  EXPECT_EQ(derivatives([](const Tensor& x) { return celu(x, 0.5); }, 0.0, 3), (Values{1, 0, 0}));
  EXPECT_EQ(derivatives([](const Tensor& x) { return clamp(x, 0.0) * x; }, 0.0, 2), (Values{0, 0}));
  for (const double at : {0.0, 2.0, -1.0}) {
    EXPECT_EQ(derivatives([](const Tensor& x) { return pow(x, 3.0); }, at, 4), (Values{3 * at * at, 6 * at, 6, 0}));
    EXPECT_EQ(derivatives([](const Tensor& x) { return pow(x, 4.0); }, at, 5),
              (Values{4 * at * at * at, 12 * at * at, 24 * at, 24, 0}));
    EXPECT_EQ(derivatives([](const Tensor& x) { return pow(x, 1.0); }, at, 2), (Values{1, 0}));
  }
  EXPECT_EQ(derivatives([](const Tensor& x) { return pow(x, full({1}, 3.0, kFloat64)); }, 2.0, 4),
            (Values{12, 12, 6, 0}));
}

TEST(SecondDerivativeEdges, ProductsThroughZerosAreThoseOfPyTorch) {
  using Values = std::vector<double>;
  const Tensor w = tensor<double>({1, 2, 3, 4}), turned = w.flip({0});
  const auto expect_derivatives = [&](const auto& compute, Values at, const std::vector<Values>& expected) {
    const Tensor x = tensor<double>(at).requires_grad_();
    Tensor y = compute(x);
    const Tensor weights[] = {y.dim() == 0 ? ones({}, kFloat64) : w, turned, w};
    for (std::size_t order = 0; order < expected.size(); ++order) {
      y = recorded((y * weights[order]).sum(), x);
      expect_close(y.detach(), tensor<double>(expected[order]), 1e-12, 1e-12);
    }
  };
  const auto running = [](const Tensor& x) { return cumprod(x, 0); };
  expect_derivatives(running, {1.5, -2, 0.5, 3},
                     {{-18, 14.25, -45, -6}, {-35.5, 86, -64.5, -31}, {135, 310, 113, -12}});
  expect_derivatives(running, {2, 0, 3, -1}, {{1, -2, 0, 0}, {-3, 16, -6, 72}, {155, 278, 101, 236}});
  expect_derivatives(running, {0, 2, 0, 5}, {{5, 0, 0, 0}, {98, 8, 184, 0}, {387, 322, 389, 112}});
  const auto whole = [](const Tensor& x) { return prod(x); };
  expect_derivatives(whole, {2, 0, 3, -1}, {{0, -6, 0, 0}, {-9, -10, -6, 18}, {29, 59, 17, 59}});
  expect_derivatives(whole, {0, 2, 0, 5}, {{0, 0, 0, 0}, {20, 0, 40, 0}, {87, 70, 89, 28}});
  expect_derivatives([](const Tensor& x) { return logcumsumexp(x, 0); }, {0, 2, 0, 5},
                     {{1.5832749674219817, 4.3098514553829705, 0.34486912337774667, 3.7620044538173},
                      {0.6025362896653474, 0.14232299059581166, -0.2971891278971587, -0.447670152363997}});
}

TEST(SecondDerivativeEdges, StepsKeepNothingOfTheirInput) {
  for (const auto step : {floor, ceil, round, trunc, sign}) {
    const Tensor w = leaf({0.5, -1.5});
    Tensor x = w * 3.0;
    const StoragePtr memory = x.storage();
    const Tensor y = step(x);
    const std::uint32_t before = memory->use_count();
    x = {};
    EXPECT_LT(memory->use_count(), before);
    EXPECT_EQ(memory->use_count(), 1u);
    const Tensor g = recorded((y * w).sum(), w);
    expect_close(g.detach(), y.detach());
    expect_close(grad({g.sum()}, {w})[0], zeros({2}, kFloat64));
  }
}

TEST(SecondDerivativeEdges, FracKeepsNothingOfItsInput) {
  const Tensor w = leaf({0.5, -1.5});
  Tensor x = w * 3.0;
  const StoragePtr memory = x.storage();
  const Tensor y = frac(x);
  x = {};
  EXPECT_EQ(memory->use_count(), 1u);
  const Tensor g = recorded((y * w).sum(), w);  // frac(3 w) + 3 w
  expect_close(g.detach(), y.detach() + w.detach() * 3.0);
  expect_close(grad({g.sum()}, {w})[0], full({2}, 6.0, kFloat64));
}

TEST(SecondDerivativeEdges, AQueryThatSeesNothingHasNone) {
  const Tensor q = make_leaf({3, 2}, 1), k = make_leaf({4, 2}, 2), v = make_leaf({4, 2}, 3);
  const Tensor mask = zeros({3, 4}, {.dtype = kFloat64});
  mask[1].fill_(-std::numeric_limits<double>::infinity());
  const auto loss = [&] { return scaled_dot_product_attention(q, k, v, {.attn_mask = mask}).square().sum(); };
  const std::vector<Tensor> recording = grad({loss()}, {q, k, v}, {}, {.create_graph = true});
  const std::vector<Tensor> plain = grad({loss()}, {q, k, v});
  for (std::size_t i = 0; i < plain.size(); ++i) expect_close(recording[i].detach(), plain[i]);
  for (const Tensor& second : grad({recording[1].square().sum()}, {q, k, v}))
    EXPECT_TRUE(isfinite(second).all().item<bool>());
}

TEST(SecondDerivativeEdges, TheVarianceOfOneElementHasNaN) {
  const Tensor x = leaf({2.0});
  EXPECT_TRUE(std::isnan(grad({recorded(x.var(), x).sum()}, {x})[0].item<double>()));
}

TEST(SecondDerivativeEdges, RemaindersPassThrough) {
  const Tensor a = leaf({5.5, -3.2}), b = leaf({2.0, 1.5});
  const Tensor g = recorded((fmod(a, b) * a).sum(), a);
  expect_close(grad({g.sum()}, {a})[0], full({2}, 2.0, kFloat64));
  const Tensor grid = make_leaf({1, 2, 2, 2}, 3, kFloat64, -2, 2), x = make_leaf({1, 1, 3, 3}, 4, kFloat64);
  EXPECT_TRUE(recorded(grid_sample(x, grid, {.padding_mode = GridPadding::reflection}).sum(), grid).requires_grad());
}

// In the functions' domains and outside, at corners, at infinity and at what is no number.
TEST(SecondDerivativeEdges, RecordedGradientsOfFunctionsAreThePlainOnes) {
  const double inf = INFINITY, nan = NAN;
  const auto points = [&] {
    return leaf({-inf, -4, -3, -1.5, -1, -0.5, -0.0, 0, 0.25, 0.5, 1, 1.5, 3, 4, 30, inf, nan});
  };
  using Function = Tensor (*)(const Tensor&);
  const std::vector<std::pair<const char*, Function>> functions{
      {"relu", [](const Tensor& x) { return relu(x); }},
      {"abs", [](const Tensor& x) { return abs(x); }},
      {"exp", [](const Tensor& x) { return exp(x); }},
      {"expm1", [](const Tensor& x) { return expm1(x); }},
      {"log", [](const Tensor& x) { return log(x); }},
      {"log1p", [](const Tensor& x) { return log1p(x); }},
      {"log2", [](const Tensor& x) { return log2(x); }},
      {"log10", [](const Tensor& x) { return log10(x); }},
      {"sqrt", [](const Tensor& x) { return sqrt(x); }},
      {"rsqrt", [](const Tensor& x) { return rsqrt(x); }},
      {"reciprocal", [](const Tensor& x) { return reciprocal(x); }},
      {"square", [](const Tensor& x) { return square(x); }},
      {"tanh", [](const Tensor& x) { return tanh(x); }},
      {"sigmoid", [](const Tensor& x) { return sigmoid(x); }},
      {"tan", [](const Tensor& x) { return tan(x); }},
      {"asin", [](const Tensor& x) { return asin(x); }},
      {"acos", [](const Tensor& x) { return acos(x); }},
      {"atan", [](const Tensor& x) { return atan(x); }},
      {"sinh", [](const Tensor& x) { return sinh(x); }},
      {"cosh", [](const Tensor& x) { return cosh(x); }},
      {"asinh", [](const Tensor& x) { return asinh(x); }},
      {"acosh", [](const Tensor& x) { return acosh(x); }},
      {"atanh", [](const Tensor& x) { return atanh(x); }},
      {"erf", [](const Tensor& x) { return erf(x); }},
      {"erfc", [](const Tensor& x) { return erfc(x); }},
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"silu", [](const Tensor& x) { return silu(x); }},
      {"mish", [](const Tensor& x) { return mish(x); }},
      {"softsign", [](const Tensor& x) { return softsign(x); }},
      {"logsigmoid", [](const Tensor& x) { return logsigmoid(x); }},
      {"hardtanh", [](const Tensor& x) { return hardtanh(x); }},
      {"hardsigmoid", [](const Tensor& x) { return hardsigmoid(x); }},
      {"hardswish", [](const Tensor& x) { return hardswish(x); }},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x); }},
      {"elu", [](const Tensor& x) { return elu(x); }},
      {"celu", [](const Tensor& x) { return celu(x); }},
      {"selu", [](const Tensor& x) { return selu(x); }},
      {"softplus", [](const Tensor& x) { return softplus(x); }},
      {"lgamma", [](const Tensor& x) { return lgamma(x); }},
      {"nan_to_num", [](const Tensor& x) { return nan_to_num(x); }},
  };
  for (const auto& [name, f] : functions) {
    const Tensor x = points();
    const std::vector<double> plain = grad({f(x)}, {x}, {ones_like(x)})[0].to_vector<double>();
    const std::vector<double> again = recorded(f(x), x, {ones_like(x)}).detach().to_vector<double>();
    const std::vector<double> at = x.to_vector<double>();
    for (std::size_t i = 0; i < at.size(); ++i) {
      const double scale = std::max(1.0, std::abs(plain[i]));
      const bool same = std::isfinite(plain[i]) ? std::abs(plain[i] - again[i]) <= 1e-12 * scale
                                                : (std::isnan(plain[i]) ? std::isnan(again[i]) : plain[i] == again[i]);
      EXPECT_TRUE(same) << name << " at " << at[i] << ": " << plain[i] << ", recorded " << again[i];
    }
  }
}

// A window that lies in the padding alone has no element.
TEST(SecondDerivativeEdges, OfAMaximumOfNothing) {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {1, 1, 2, 3});
  const auto pooled = [&] { return max_pool2d(x, {2, 2}, {.stride = {1, 1}, .padding = {1, 1}, .dilation = {3, 3}}); };
  const Tensor y = pooled();
  const Tensor seed = ones_like(y).requires_grad_();
  const Tensor g = recorded(y, x, {seed});
  expect_close(g.detach(), grad({pooled()}, {x}, {ones_like(y)})[0]);
  const Tensor second = grad({g.sum()}, {seed})[0];
  EXPECT_TRUE(second.isfinite().all().item<bool>());
}

TEST(SecondDerivativeEdges, FlatFunctionsKeepNothingThatCouldBeGone) {
  for (Tensor (*const flat)(const Tensor&) : {sign, floor, ceil, round, trunc, frac}) {
    const Tensor x = leaf({1.5, -2.25}), y = flat(x).sum();
    y.backward();
    y.backward();
    const double each = flat(tensor<double>({0.25})).item<double>() == 0.25 ? 2 : 0;
    EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{each, each}));
    EXPECT_EQ(recorded(recorded(flat(x).sum(), x).sum(), x).to_vector<double>(), (std::vector<double>{0, 0}));
  }
  const Tensor none = zeros({2, 0}).requires_grad_(), grids = diag_embed(none, 1);
  grids.sum().backward();
  EXPECT_EQ(grids.sizes(), (Shape{2, 1, 1}));
  EXPECT_EQ(none.grad().sizes(), (Shape{2, 0}));
}

}  // namespace
}  // namespace lockstep::testing
