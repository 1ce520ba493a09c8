#include "lockstep/nn/optim/grad_scaler.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/optim/sgd.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;

struct Problem {
  Tensor weight = tensor<float>({1, 2});
  SGD optimizer{{(weight.set_requires_grad(true), weight)}, {.lr = 0.5}};

  // The gradient of the loss is `grad` at every element.
  void backward(const GradScaler& scaler, double grad) {
    optimizer.zero_grad();
    scaler.scale((weight * grad).sum()).backward();
  }
};

TEST(GradScaler, StepsAsWithoutIt) {
  Problem problem;
  GradScaler scaler({.init_scale = 1024});
  problem.backward(scaler, 0.25);
  EXPECT_EQ(problem.weight.grad().to_vector<float>(), (std::vector<float>{256, 256}));
  EXPECT_TRUE(scaler.step(problem.optimizer));
  scaler.update();
  EXPECT_EQ(problem.weight.to_vector<float>(), (std::vector<float>{0.875, 1.875}));
}

TEST(GradScaler, GradientsCanBeClippedInBetween) {
  Problem problem;
  GradScaler scaler({.init_scale = 1024});
  problem.backward(scaler, 4.0);
  EXPECT_TRUE(scaler.unscale(problem.optimizer));
  EXPECT_EQ(problem.weight.grad().to_vector<float>(), (std::vector<float>{4, 4}));
  EXPECT_TRUE(scaler.step(problem.optimizer));
  EXPECT_EQ(problem.weight.to_vector<float>(), (std::vector<float>{-1, 0}));
}

TEST(GradScaler, LeavesAStepOutAndShrinks) {
  for (const double bad : {1e38, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Problem problem;
    GradScaler scaler({.init_scale = 1024});
    problem.backward(scaler, bad);
    EXPECT_FALSE(scaler.step(problem.optimizer)) << bad;
    scaler.update();
    EXPECT_EQ(scaler.scale_factor(), 512) << bad;
    EXPECT_EQ(problem.weight.to_vector<float>(), (std::vector<float>{1, 2})) << bad;
  }
}

TEST(GradScaler, GrowsAfterAnIntervalWithoutOverflow) {
  Problem problem;
  GradScaler scaler({.init_scale = 2, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2});
  const auto iterate = [&](double grad) {
    problem.backward(scaler, grad);
    scaler.step(problem.optimizer);
    scaler.update();
    return scaler.scale_factor();
  };
  EXPECT_EQ(iterate(1), 2);
  EXPECT_EQ(iterate(1), 8);
  EXPECT_EQ(iterate(1), 8);
  EXPECT_EQ(iterate(1e38), 2);
  EXPECT_EQ(iterate(1), 2);
  GradScaler resumed({.growth_factor = 4, .growth_interval = 2});
  resumed.load_state(scaler.state());
  scaler = resumed;
  EXPECT_EQ(iterate(1), 8);
}

// NaN in the data of many steps, say: what comes after them counts again.
TEST(GradScaler, ManyOverflowsLeaveAScaleThatGrows) {
  Problem problem;
  GradScaler scaler({.growth_factor = 4, .growth_interval = 1});
  const auto iterate = [&](double grad) {
    problem.backward(scaler, grad);
    const bool made = scaler.step(problem.optimizer);
    scaler.update();
    return made;
  };
  for (int i = 0; i < 1200; ++i) EXPECT_FALSE(iterate(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(scaler.scale_factor(), 0x1p-126);
  EXPECT_EQ(scaler.get_scale(), 0x1p-126);
  GradScaler resumed({.growth_factor = 4, .growth_interval = 1});
  resumed.load_state(scaler.state());
  scaler = resumed;
  EXPECT_TRUE(iterate(1.0));
  EXPECT_EQ(problem.weight.to_vector<float>(), (std::vector<float>{0.5, 1.5}));
  for (int i = 0; i < 63; ++i) EXPECT_TRUE(iterate(1.0));
  EXPECT_EQ(scaler.scale_factor(), 4.0);
}

// As with PyTorch: a loop over two optimizers ends with one update().
TEST(GradScaler, ServesSeveralOptimizersInAnIteration) {
  const Tensor a = ones({2}).requires_grad_(), b = ones({2}).requires_grad_();
  SGD first({a}, {.lr = 1.0}), second({b}, {.lr = 1.0});
  GradScaler scaler({.init_scale = 4.0, .growth_interval = 1});
  const auto iterate = [&](double of_a, double of_b) {
    first.zero_grad();
    second.zero_grad();
    scaler.scale(sum(a * of_a)).backward();
    scaler.scale(sum(b * of_b)).backward();
    const bool made_first = scaler.step(first);
    const bool made_second = scaler.step(second);
    scaler.update();
    return std::pair(made_first, made_second);
  };
  EXPECT_EQ(iterate(1.0, 2.0), std::pair(true, true));
  EXPECT_EQ(a.to_vector<double>(), std::vector<double>(2, 0.0));
  EXPECT_EQ(b.to_vector<double>(), std::vector<double>(2, -1.0));
  EXPECT_EQ(scaler.scale_factor(), 8.0);
  // What one leaves out the other does, and the scale shrinks, whichever was first.
  EXPECT_EQ(iterate(INFINITY, 1.0), std::pair(false, true));
  EXPECT_EQ(scaler.scale_factor(), 4.0);
  EXPECT_EQ(iterate(1.0, INFINITY), std::pair(true, false));
  EXPECT_EQ(scaler.scale_factor(), 2.0);
  EXPECT_EQ(a.to_vector<double>(), std::vector<double>(2, -1.0));
  EXPECT_EQ(b.to_vector<double>(), std::vector<double>(2, -2.0));
}

TEST(GradScaler, RefusesWhatCannotBeRight) {
  EXPECT_NE(error_of([] { GradScaler({.init_scale = 0}); }).find("init_scale > 0, found 0"), std::string::npos);
  EXPECT_NE(error_of([] { GradScaler({.growth_factor = 1}); }).find("growth_factor > 1"), std::string::npos);
  EXPECT_NE(error_of([] { GradScaler({.backoff_factor = 1}); }).find("backoff_factor < 1"), std::string::npos);
  EXPECT_NE(error_of([] { GradScaler({.growth_interval = 0}); }).find("growth_interval >= 1"), std::string::npos);
  Problem problem;
  GradScaler scaler;
  EXPECT_NE(error_of([&] { scaler.load_state({-1, 0}); }).find("positive scale"), std::string::npos);
  EXPECT_NE(error_of([&] { scaler.update(); }).find("neither unscale() nor step()"), std::string::npos);
  problem.backward(scaler, 1);
  scaler.unscale(problem.optimizer);
  EXPECT_NE(error_of([&] { scaler.unscale(problem.optimizer); }).find("already done"), std::string::npos);
  scaler.step(problem.optimizer);
  EXPECT_NE(error_of([&] { scaler.step(problem.optimizer); }).find("already made"), std::string::npos);
  const Tensor half = zeros({2}, {.dtype = DType::float16});
  half.set_requires_grad(true);
  SGD optimizer({half}, {.lr = 0.1});
  half.set_grad(ones({2}, {.dtype = DType::float16}));
  GradScaler other;
  EXPECT_NE(error_of([&] { other.step(optimizer); }).find("float16"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::optim
