#include <gtest/gtest.h>

#include "lockstep/autograd/anomaly.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

Tensor leaf(double value) {
  const Tensor x = full({2}, value, {.dtype = kFloat64});
  x.set_requires_grad(true);
  return x;
}

double first(const Tensor& x) {
  return x.to_vector<double>()[0];
}

TEST(GradientHooks, SeeAResultsWholeGradientAndMayReplaceIt) {
  const Tensor x = leaf(3);
  const Tensor h = x * 2.0;
  std::vector<double> seen;
  h.register_hook([&](const Tensor& grad) {
    seen.push_back(first(grad));
    return grad * 10.0;
  });
  (h * 3.0 + h * 4.0).sum().backward();
  EXPECT_EQ(seen, (std::vector<double>{7}));
  EXPECT_EQ(first(x.grad()), 140.0);
}

TEST(GradientHooks, MayReturnNothing) {
  const Tensor x = ones({2}, kFloat64);
  x.set_requires_grad(true);
  const Tensor y = x * 3.0;
  std::vector<double> seen;
  y.register_hook([&](const Tensor& gradient) { seen = gradient.to_vector<double>(); });
  const std::uint64_t key = y.register_hook([calls = 0](Tensor gradient) mutable {
    if (++calls > 1) gradient.zero_();
  });
  EXPECT_NE(error_of([&] { y.register_hook([y](const Tensor&) {}); }).find("the hook holds the tensor"),
            std::string::npos);
  (y * 2.0).sum().backward();
  EXPECT_EQ(seen, (std::vector<double>{2, 2}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{6, 6}));
  y.remove_hook(key);
}

TEST(GradientHooks, ALeafsRunBeforeItsGradientIsAdded) {
  const Tensor x = leaf(3);
  const std::uint64_t key = x.register_hook([](const Tensor& grad) { return grad * 5.0; });
  (x * 2.0).sum().backward();
  EXPECT_EQ(first(x.grad()), 10.0);
  x.remove_hook(key);
  (x * 2.0).sum().backward();
  EXPECT_EQ(first(x.grad()), 12.0);
}

TEST(GradientHooks, WrongOnesAreErrors) {
  const Tensor x = leaf(3), h = x * 2.0;
  EXPECT_NE(error_of([&] { ones({2}).register_hook([](const Tensor& g) { return g; }); }).find("does not require"),
            std::string::npos);
  EXPECT_NE(error_of([&] { h.register_hook([h](const Tensor& g) { return g; }); }).find("the hook holds the tensor"),
            std::string::npos);
  h.register_hook([](const Tensor&) { return ones({3}); });
  EXPECT_NE(error_of([&] { h.sum().backward(); }).find("returned float32 [3] on cpu:0, expected float64 [2]"),
            std::string::npos);
}

TEST(RetainGrad, KeepsTheGradientOfAResult) {
  const Tensor x = leaf(3), h = x * 2.0;
  EXPECT_FALSE(h.retain_grad().grad().defined());
  (h * 3.0).sum().backward({}, true);
  EXPECT_EQ(first(h.grad()), 3.0);
  h.sum().backward({}, true);
  EXPECT_EQ(first(h.grad()), 4.0);
  h.set_grad({});
  EXPECT_FALSE(h.grad().defined());
  x.retain_grad();
  EXPECT_EQ(first(x.grad()), 8.0);
  EXPECT_EQ(h.impl()->use_count(), 1u);
}

TEST(RetainGrad, KeepsWhatHooksMakeOfItWheneverTheyWereAdded) {
  const Tensor h = leaf(3) * 2.0;
  h.register_hook([](const Tensor& grad) { return grad * 5.0; });
  h.retain_grad();
  h.register_hook([](const Tensor& grad) { return grad * 2.0; });
  h.sum().backward();
  EXPECT_EQ(first(h.grad()), 10.0);
}

TEST(Anomaly, NamesTheOperationThatMadeTheFirstNaN) {
  const Tensor x = leaf(-1);
  const auto run = [&] {
    const Tensor root = (x * 2.0).log();
    return (root + 1.0).sum();
  };
  EXPECT_NO_THROW(run());
  const AnomalyMode anomaly;
  EXPECT_NE(error_of([&] { run(); }).find("[AnomalyMode] Log gave the first NaN, in a result of shape [2]"),
            std::string::npos);
}

TEST(Anomaly, NamesTheBackwardFunctionThatMadeTheFirstNaN) {
  const Tensor x = leaf(0);
  const AnomalyMode anomaly;
  const Tensor y = (x.sqrt() * 0.0).sum();  // infinity * 0
  const std::string message = error_of([&] { y.backward(); });
  EXPECT_NE(message.find("SqrtBackward gave the first NaN, in the gradient of its input 0"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace lockstep
