// Whole trainings through the public headers.

#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

/// The program that a user writes first.
TEST(Training, ThirtyLineProgramLearns) {
  manual_seed(1);
  struct Net : nn::Module {
    nn::Linear fc1{this, "fc1", 2, 32};
    nn::Linear fc2{this, "fc2", 32, 2};
    Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
  } net;
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  double loss_value = 0.0;
  for (int step = 0; step < 300; ++step) {
    const Tensor x = rand({64, 2});
    const std::vector<float> points = x.to_vector<float>();
    std::vector<std::int64_t> inside;  // a disc: no straight line separates it
    for (std::size_t i = 0; i < points.size(); i += 2) {
      const float u = points[i] - 0.5f, v = points[i + 1] - 0.5f;
      inside.push_back(u * u + v * v < 0.16f);
    }
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(net(x), tensor(inside));
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  EXPECT_LT(loss_value, 0.2);
}

TEST(Training, SequentialConvolutionsWithBatchNormLearn) {
  manual_seed(2);
  nn::Sequential net;
  net.add<nn::Conv2d>(1, 8, 3, nn::Conv2dOptions{.padding = 1})
      .add<nn::BatchNorm2d>(8)
      .add<nn::ReLU>()
      .add<nn::AdaptiveAvgPool2d>(2)
      .add<nn::Flatten>()
      .add<nn::Linear>(32, 2);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  optim::LRScheduler scheduler(optimizer, optim::CosineAnnealing{.lr = 0.1, .period = 60});
  std::vector<std::int64_t> labels;
  const Tensor x = zeros({16, 1, 8, 8});
  for (std::int64_t n = 0; n < 16; ++n) {
    labels.push_back(n % 2);
    for (std::int64_t i = 0; i < 8; ++i)  // a bar across, or upright
      x.data<float>()[n * 64 + (n % 2 ? i * 8 + n / 2 : n / 2 * 8 + i)] = 1.0f;
  }
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    cross_entropy(net(x), tensor(labels)).backward();
    optimizer.step();
    scheduler.step();
  }
  net.eval();
  const TemporaryPath path;
  nn::save(net, path.text());
  nn::load(net, path.text());
  EXPECT_EQ(net(x).argmax(1).to_vector<std::int64_t>(), labels);
}

}  // namespace
}  // namespace lockstep
