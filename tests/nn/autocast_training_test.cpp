// Mixed precision: training under an AutocastGuard stays close to training in float32.

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

struct Net : nn::Module {
  nn::Conv2d conv1{this, "conv1", 1, 6, 3};
  nn::BatchNorm2d norm{this, "norm", 6};
  nn::Conv2d conv2{this, "conv2", 6, 12, 3};
  nn::Linear fc1{this, "fc1", 12 * 4, 32}, fc2{this, "fc2", 32, 4};

  Tensor forward(Tensor x) override {
    x = relu(max_pool2d(norm(conv1(x)), 2));
    x = relu(max_pool2d(conv2(x), 2));
    return fc2(relu(fc1(x.flatten(1))));
  }
};

// Four kinds of pictures, 14 x 14: a bright quarter, and noise.
struct Pictures {
  Tensor x = rand({16, 1, 14, 14});
  Tensor y;

  explicit Pictures(std::int64_t step) {
    std::vector<std::int64_t> kinds;
    for (std::int64_t n = 0; n < 16; ++n) {
      const std::int64_t kind = (n + step) % 4;
      kinds.push_back(kind);
      for (std::int64_t i = 0; i < 7; ++i)
        for (std::int64_t j = 0; j < 7; ++j)
          x.data<float>()[(n * 14 + kind / 2 * 7 + i) * 14 + kind % 2 * 7 + j] += 0.5f;
    }
    x = move_values(x, test_device());
    y = move_values(tensor(kinds), test_device());
  }
};

std::vector<double> losses(DType dtype) {
  manual_seed(3);
  Net net;
  net.to(test_device());
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 10});
  std::vector<double> curve;
  for (std::int64_t step = 0; step < 16; ++step) {
    const Pictures batch(step);
    optimizer.zero_grad();
    Tensor loss;
    {
      const AutocastGuard autocast(dtype, test_device().type);
      const Tensor logits = net(batch.x);
      EXPECT_EQ(name(logits.dtype()), name(dtype));
      loss = cross_entropy(logits, batch.y);
    }
    EXPECT_EQ(loss.dtype(), kFloat32);
    if (dtype == kFloat16) {
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
    } else {
      loss.backward();
      optimizer.step();
    }
    for (const Tensor& p : net.parameters()) {
      EXPECT_EQ(p.dtype(), kFloat32);
      EXPECT_EQ(p.grad().dtype(), kFloat32);
    }
    curve.push_back(loss.item<double>());
  }
  return curve;
}

class AutocastTraining : public ::testing::TestWithParam<DType> {};

TEST_P(AutocastTraining, StaysCloseToFloat32) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const std::vector<double> expected = losses(kFloat32), found = losses(GetParam());
  EXPECT_LT(expected.back(), 0.3 * expected.front());
  const double tolerance = GetParam() == kBFloat16 ? 0.03 : 0.01;
  double largest = 0.0;
  for (std::size_t step = 0; step < expected.size(); ++step)
    largest = std::max(largest, std::abs(found[step] - expected[step]));
  EXPECT_LT(largest, tolerance * expected.front());
  EXPECT_NE(found, expected);  // it was another arithmetic
}
INSTANTIATE_TEST_SUITE_P(Types, AutocastTraining, ::testing::Values(kBFloat16, kFloat16),
                         [](const auto& i) { return std::string(name(i.param)); });

}  // namespace
}  // namespace lockstep
