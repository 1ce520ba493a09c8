// What a program written for libtorch says of tensors, and what it means there.

#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using namespace indexing;  // NOLINT

using Values = std::vector<double>;

Values values(const Tensor& x) {
  return x.detach().to_vector<double>();
}

TEST(LibtorchIdioms, ArangeTakesItsDtypeFromItsNumbers) {
  EXPECT_EQ(arange(0, 10, 4).dtype(), kInt64);
  EXPECT_EQ(arange(3).dtype(), kInt64);
  EXPECT_EQ(arange(0.0, 1.0, 0.25).dtype(), kFloat32);
  EXPECT_EQ(values(arange(0.0, 1.0, 0.25)), (Values{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(values(arange(0, 1, 0.5)), (Values{0, 0.5}));
  EXPECT_EQ(values(arange(2.5)), (Values{0, 1, 2}));
  EXPECT_EQ(arange(2, {.dtype = kFloat64}).dtype(), kFloat64);
}

TEST(LibtorchIdioms, NormOfANumberIsOfThatOrder) {
  const Tensor x = tensor<double>({{3, -4, 0}, {0, 0, 2}});
  EXPECT_EQ(x.norm(1).item(), 9.0);
  EXPECT_EQ(norm(x, 1).item(), 9.0);
  EXPECT_EQ(norm(x.view({1, 1, 2, 3}), 2).item(), x.norm().item());  // not that over dimension 2
  EXPECT_EQ(values(x.norm(2, 1)), (Values{5, 2}));
  EXPECT_EQ(x.norm(2, 1, true).sizes(), (Shape{2, 1}));
  EXPECT_EQ(values(x.norm(1, {0})), (Values{3, 4, 2}));
  EXPECT_EQ(values(x.norm({1})), (Values{5, 2}));
  EXPECT_EQ(values(x.norm({0}, true)), (Values{3, 4, 2}));
}

TEST(LibtorchIdioms, IndicesOfNumbersSlicesAndDots) {
  const Tensor x = arange(24).view({2, 3, 4});
  EXPECT_EQ(values(x.index({1, 2, 3})), (Values{23}));
  EXPECT_EQ(values(x.index({Slice(), -1, Slice(None, None, 2)})), (Values{8, 10, 20, 22}));
  EXPECT_EQ(values(x.index({"...", 0})), (Values{0, 4, 8, 12, 16, 20}));
  EXPECT_EQ(values(x.index({Ellipsis, Slice(3)})), (Values{3, 7, 11, 15, 19, 23}));
  EXPECT_EQ(x.index({None, 0, "...", None}).sizes(), (Shape{1, 3, 4, 1}));
  EXPECT_EQ(values(x.index({1, tensor<std::int64_t>({2, 0}), Slice(0, 1)})), (Values{20, 12}));
  EXPECT_EQ(x.index({None, tensor<std::int64_t>({2, 0, 1, 1}) % 2}).sizes(), (Shape{1, 4, 3, 4}));
  EXPECT_EQ(values(x.index({x > 21})), (Values{22, 23}));
  EXPECT_EQ(values(x.index({Slice(), x[0] > 9})), (Values{10, 11, 22, 23}));
  EXPECT_EQ(values(x.index({scalar_tensor(1, {.dtype = kInt64}), 0, 0})), (Values{12}));
  const Tensor y = x.clone();
  y.index_put_({Slice(), Slice(1, None), 0}, -1);
  y.index_put_({y > 20}, 0);
  y.index_put_({0, 0}, tensor<std::int64_t>({7}));
  EXPECT_EQ(values(y), (Values{7, 7, 7, 7, -1, 5, 6, 7, -1, 9, 10, 11, 12, 13, 14, 15, -1, 17, 18, 19, -1, 0, 0, 0}));
  const Tensor w = ones({2, 3}).requires_grad_();
  w.index({Slice(), 1}).sum().backward();
  EXPECT_EQ(values(w.grad()), (Values{0, 1, 0, 0, 1, 0}));
  EXPECT_NE(error_of([&] {
              x.index({0, 0, 0, 0});
            }).find("too many indices for a tensor of shape [2, 3, 4]: 4"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              x.index({"...", "..."});
            }).find("expected one \"...\" at most, found 2"),
            std::string::npos);
  EXPECT_NE(error_of([&] { x.index({".."}); }).find("found \"..\""), std::string::npos);
}

// outputs[t] = h of a loop, by the method that libtorch's programs call.
TEST(LibtorchIdioms, IndexPutOfNumbersAndSlicesIsRecorded) {
  const Tensor w = tensor<double>({1, 2, 3}).requires_grad_();
  Tensor h = w * 1.0;
  const Tensor outputs = zeros({4, 3}, {.dtype = kFloat64});
  for (std::int64_t t = 0; t < 4; ++t) {
    h = h * 2.0;
    outputs.index_put_({t}, h);
  }
  outputs.index_put_({Slice(1, 3), 0}, w[1]);
  EXPECT_EQ(values(outputs), (Values{2, 4, 6, 2, 8, 12, 2, 16, 24, 16, 32, 48}));
  outputs.sum().backward();
  EXPECT_EQ(values(w.grad()), (Values{18, 32, 30}));
  const Tensor y = w * 1.0;
  y.index_put_({0}, 7);  // its own gradient is cut off there
  w.set_grad({});
  (y * y).sum().backward();
  EXPECT_EQ(values(w.grad()), (Values{0, 4, 6}));
  EXPECT_NE(error_of([&] {
              outputs.index_put_({0}, (w * 1.0).view({3, 1}));
            }).find("[index_put_] values of shape [3, 1]"),
            std::string::npos);
  const Tensor fresh = zeros({2, 3}, {.dtype = kFloat64});
  fresh.select(0, 0).copy_(w);
  fresh.index_put_({Slice(), tensor<std::int64_t>({0, 2})}, w[0]);
  w.set_grad({});
  fresh.sum().backward();
  EXPECT_EQ(values(w.grad()), (Values{4, 1, 0}));
}

TEST(LibtorchIdioms, InPlaceMethodsHaveTheValuesAndGradientsOfTheOthers) {
  const auto check = [](const char* name, const std::function<void(const Tensor&)>& change,
                        const std::function<Tensor(const Tensor&)>& function) {
    const Tensor a = tensor<double>({0.5, 2.0, 3.5}).requires_grad_(), b = a.detach().clone().requires_grad_();
    const Tensor changed = a * 1;
    change(changed);
    const Tensor expected = function(b * 1);
    EXPECT_EQ(values(changed), values(expected)) << name;
    square(changed).sum().backward();
    square(expected).sum().backward();
    EXPECT_EQ(values(a.grad()), values(b.grad())) << name;
    EXPECT_NE(error_of([&] { change(a); }).find("a leaf"), std::string::npos) << name;
    const NoGradGuard values_only;
    change(a);
    EXPECT_EQ(values(a), values(expected)) << name;
  };
  const Tensor c = tensor<double>({1, -2, 4});
  const Tensor first = tensor<std::int64_t>({0, 1});
  check(
      "exp_", [](const Tensor& x) { x.exp_(); }, [](const Tensor& x) { return x.exp(); });
  check(
      "sqrt_", [](const Tensor& x) { x.sqrt_(); }, [](const Tensor& x) { return x.sqrt(); });
  check(
      "neg_", [](const Tensor& x) { x.neg_(); }, [](const Tensor& x) { return -x; });
  check(
      "abs_", [](const Tensor& x) { x.abs_(); }, [](const Tensor& x) { return x.abs(); });
  check(
      "relu_", [](const Tensor& x) { x.relu_(); }, [](const Tensor& x) { return x.relu(); });
  check(
      "pow_", [](const Tensor& x) { x.pow_(3); }, [](const Tensor& x) { return x.pow(3); });
  check(
      "lerp_", [&](const Tensor& x) { x.lerp_(c, 0.3); }, [&](const Tensor& x) { return lerp(x, c, 0.3); });
  check(
      "addcmul_", [&](const Tensor& x) { x.addcmul_(c, c, 0.5); },
      [&](const Tensor& x) { return addcmul(x, c, c, 0.5); });
  check(
      "addcdiv_", [&](const Tensor& x) { x.addcdiv_(c, c, -2); },
      [&](const Tensor& x) { return addcdiv(x, c, c, -2); });
  check(
      "scatter_", [&](const Tensor& x) { x.scatter_(0, first, 7); },
      [&](const Tensor& x) { return x.scatter(0, first, 7); });
  check(
      "scatter_add_", [&](const Tensor& x) { x.scatter_add_(0, first, c); },
      [&](const Tensor& x) { return x.scatter_add(0, first, c); });
  check(
      "index_add_", [&](const Tensor& x) { x.index_add_(0, first, c.narrow(0, 0, 2)); },
      [&](const Tensor& x) { return x.index_add(0, first, c.narrow(0, 0, 2)); });
}

TEST(LibtorchIdioms, SmallFunctions) {
  const Tensor x = tensor<double>({{1, 2}, {5, 3}}), v = tensor<double>({1, 4});
  EXPECT_EQ(values(diag(v)), (Values{1, 0, 0, 4}));
  EXPECT_EQ(values(diag(v, 1)), (Values{0, 1, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(values(diag(v, -1)), (Values{0, 0, 0, 1, 0, 0, 0, 4, 0}));
  EXPECT_EQ(values(diag(x)), (Values{1, 3}));
  EXPECT_EQ(trace(x).item(), 4.0);
  EXPECT_EQ(values(diff(x)), (Values{1, -2}));
  EXPECT_EQ(values(diff(x, 1, 0)), (Values{4, 1}));
  EXPECT_EQ(values(median(x, 1).values), (Values{1, 3}));
  EXPECT_EQ(values(median(x, 0).indices), (Values{0, 0}));
  EXPECT_EQ(median(x).item(), 2.0);
  EXPECT_TRUE(std::isnan(median(tensor<double>({1, NAN, 0})).item()));
  EXPECT_EQ(values(bincount(tensor<std::int64_t>({0, 2, 2}), {}, 4)), (Values{1, 0, 2, 0}));
  EXPECT_EQ(values(bincount(tensor<std::int64_t>({1, 1}), v)), (Values{0, 5}));
  EXPECT_EQ(count_nonzero(x - 1).item(), 3.0);
  EXPECT_EQ(values(nan_to_num(tensor<double>({NAN, INFINITY, -INFINITY, 1}), 9, 8, 7)), (Values{9, 8, 7, 1}));
  EXPECT_EQ(nan_to_num(tensor<float>({INFINITY})).item<float>(), std::numeric_limits<float>::max());
  EXPECT_NEAR(logaddexp(v, v).to_vector<double>()[0], 1 + std::log(2), 1e-15);
  EXPECT_EQ(values(logaddexp(full({1}, 1000.0), v.to(kFloat32))), (Values{1000, 1000}));
  const auto [variance, mean] = var_mean(x, 1, 0.0);
  EXPECT_EQ(values(variance), (Values{0.25, 1}));
  EXPECT_EQ(values(mean), (Values{1.5, 4}));
  EXPECT_EQ(values(cdist(x, x)), (Values{0, std::sqrt(17.0), std::sqrt(17.0), 0}));
  EXPECT_EQ(values(cdist(x, v.unsqueeze(0), 1.0)), (Values{2, 5}));
  EXPECT_EQ(values(where(x > 2, 1, 0)), (Values{0, 0, 1, 1}));
  EXPECT_EQ(where(x > 2, 1.0, 0).dtype(), kFloat32);
  EXPECT_EQ(values(x % 2), (Values{1, 0, 1, 1}));
  EXPECT_EQ(values(floor_divide(x, 2)), (Values{0, 1, 2, 1}));
  EXPECT_EQ(values(!(x > 2)), (Values{1, 1, 0, 0}));
  EXPECT_EQ(x.split({1, 1}, 1)[1].sizes(), (Shape{2, 1}));
  EXPECT_EQ(zeros({2}, x.options()).dtype(), kFloat64);
  EXPECT_EQ(ones({2}, kLong).dtype(), kInt64);
  EXPECT_EQ(tensor(3.5).dim(), 0);
  EXPECT_EQ(tensor({1, 2}, kDouble).dtype(), kFloat64);
  const std::int64_t large = (std::int64_t{1} << 60) + 1;  // no double holds it
  EXPECT_EQ(tensor(large).item<std::int64_t>(), large);
  EXPECT_EQ(tensor({large, large}, kInt64).to_vector<std::int64_t>()[1], large);
  const Tensor numbers = zeros({3}, kInt64);
  numbers.index_put_({indexing::Slice(1)}, large);
  EXPECT_EQ(numbers.to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, large, large}));
  EXPECT_THROW(tensor({300}, kUInt8), Error);
  EXPECT_NE(error_of([] {
              tensor<float>({{1, 2}, {3}});
            }).find("rows of equal length, found 2 and 1"),
            std::string::npos);
  std::ostringstream text;
  text << x.dtype();
  EXPECT_EQ(text.str(), "float64");
}

TEST(LibtorchIdioms, WordsTransposesAndDraws) {
  const Tensor x = arange(6, kFloat32).view({2, 3});
  EXPECT_TRUE(equal(gelu(x, "tanh"), gelu(x, GeluMode::tanh)) && equal(gelu(x, "none"), gelu(x)));
  EXPECT_NE(error_of([&] { gelu(x, "erf"); }).find("found \"erf\""), std::string::npos);
  EXPECT_TRUE(equal(x.T(), x.t()) && equal(x.unsqueeze(0).mT()[0], x.t()));
  EXPECT_EQ(x.to(kCPU, kFloat64).dtype(), kFloat64);
  const std::vector<Tensor> places = where(x > 3);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(values(places[1]), (Values{1, 2}));
  EXPECT_EQ(values(x.index({places[0], places[1]})), (Values{4, 5}));

  manual_seed(3);
  const Tensor many = zeros({20000}, kFloat64);
  EXPECT_NEAR(many.bernoulli(0.3).mean().item(), 0.3, 0.02);
  EXPECT_NEAR(bernoulli(many.to(kInt64), 0.7).to(kFloat64).mean().item(), 0.7, 0.02);
  EXPECT_NEAR(many.bernoulli_(0.2).mean().item(), 0.2, 0.02);
  EXPECT_TRUE(equal(x.clone().bernoulli_((x > 2).to(kFloat32)), (x > 2).to(kFloat32)));
  for (const DType dtype : {kInt64, kBool})
    EXPECT_TRUE(equal(zeros_like(x).to(dtype).bernoulli_((x > 2).to(kFloat32)), (x > 2).to(dtype))) << name(dtype);
  many.exponential_(2.0);
  EXPECT_GT(many.min().item(), 0.0);
  EXPECT_NEAR(many.mean().item(), 0.5, 0.02);
  EXPECT_NEAR(many.var().item(), 0.25, 0.03);
  EXPECT_NE(error_of([&] { many.exponential_(0); }).find("[exponential_]"), std::string::npos);

  const Tensor logits = tensor<double>({0, 1, 2}).expand({20000, 3}).clone().requires_grad_();
  const Tensor hard = gumbel_softmax(logits, 0.5, true);
  EXPECT_TRUE(allclose(hard.sum(1), ones({20000}, kFloat64)));
  const Tensor shares = softmax(logits[0], 0);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_NEAR(hard.select(1, i).mean().item(), shares[i].item(), 0.02);
  hard.select(1, 0).sum().backward();
  EXPECT_GT(logits.grad().abs().max().item(), 0.01);
  manual_seed(3);
  const Tensor soft = gumbel_softmax(logits, 0.5);
  EXPECT_TRUE(allclose(soft.sum(1), ones({20000}, kFloat64)));
  manual_seed(3);
  EXPECT_TRUE(equal(gumbel_softmax(logits, 0.5, true).argmax(1), soft.argmax(1)));
}

TEST(LibtorchIdioms, KlDivTakesPyTorchsWords) {
  const Tensor x = log(tensor<double>({0.25, 0.75, 0.5, 0.5}).view({2, 2})), t = exp(x).flip({1});
  const double sum = kl_div(x, t, Reduction::sum).item<double>();
  EXPECT_EQ(kl_div(x, t, "sum").item<double>(), sum);
  EXPECT_EQ(kl_div(x, t, "batchmean").item<double>(), sum / 2);
  EXPECT_EQ(kl_div(x, t, "mean").item<double>(), kl_div(x, t).item<double>());
  EXPECT_EQ(kl_div(x, t, "none").sizes(), (Shape{2, 2}));
  EXPECT_EQ(kl_div(x, log(t), "batchmean", true).item<double>(),
            kl_div(x, log(t), Reduction::sum, true).item<double>() / 2);
  const std::string error = error_of([&] { kl_div(x, t, "batch"); });
  EXPECT_NE(error.find("[kl_div] expected \"none\", \"mean\", \"sum\" or \"batchmean\", found \"batch\""),
            std::string::npos)
      << error;
}

TEST(LibtorchIdioms, DistancesOfARowToItselfHaveNoGradient) {
  const Tensor x = tensor<double>({{1, 2}, {5, 3}}).requires_grad_();
  cdist(x, x).sum().backward();
  EXPECT_TRUE(isfinite(x.grad()).all().item<bool>());
}

}  // namespace
}  // namespace lockstep::testing
