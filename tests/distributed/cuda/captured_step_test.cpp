#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/capture.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/cuda/cuda_ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::make_input;

struct Net final : nn::Module {
  nn::Linear first{this, "first", 12, 16};
  nn::Linear last{this, "last", 16, 5};
  double drop = 0.0;
  bool reads_back = false;
  bool brings_values = false;

  Tensor forward(Tensor x) override {
    x = dropout(first(x).relu(), drop, is_training());
    if (brings_values) x = x * tensor<float>(std::vector<float>(16, 1.5f)).to(x.device());
    if (reads_back && x.sum().item<double>() < 0) return -last(x);
    return last(x);
  }
};

Tensor loss_of(nn::Module& net, const data::Batch& part) {
  return cross_entropy(net.forward(part.x), part.y);
}

data::Batch batch_of(std::uint32_t number, std::int64_t size) {
  const Tensor x = make_input({size, 12}, number, kFloat32);
  const Tensor y = cast_values(make_input({size}, 1000 + number, kFloat64, 0.0, 5.0), kInt64);
  return {x, y, size};
}

struct Outcome {
  std::vector<double> losses;
  std::vector<double> weights;
  std::uint64_t replays = 0;
  std::string obstacle;
};

struct Settings {
  bool capture = true;
  double drop = 0.0;
  bool reads_back = false;
  bool brings_values = false;
  bool adam = false;
  double max_grad_norm = 0.0;
  bool keys = true;                       // the caller sets the random keys' step
  std::vector<std::int64_t> sizes = {8};  // of the batches, in turn
};

Outcome train(const Settings& setup, const TrainingStepOptions& options, int steps = 12) {
  manual_seed(3);
  TrainingStep step(
      [&] {
        auto net = std::make_unique<Net>();
        net->drop = setup.drop;
        net->reads_back = setup.reads_back;
        net->brings_values = setup.brings_values;
        return net;
      },
      options);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (setup.adam)
    optimizer = std::make_unique<optim::AdamW>(step.module().parameters(), optim::AdamWOptions{.lr = 0.01});
  else
    optimizer = std::make_unique<optim::SGD>(step.module().parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  CapturedStep train(step, *optimizer, {.capture = setup.capture, .max_grad_norm = setup.max_grad_norm});
  Outcome run;
  for (int i = 0; i < steps; ++i) {
    const std::int64_t size = setup.sizes[static_cast<std::size_t>(i) % setup.sizes.size()];
    data::Batch batch = batch_of(static_cast<std::uint32_t>(i), size);
    optimizer->set_lr(0.1 / (1 + i));
    std::optional<RandomKeyGuard> key;
    if (setup.keys) key.emplace(static_cast<std::uint64_t>(i), 0u);
    const Tensor loss = train(batch, loss_of);
    EXPECT_EQ(loss.dim(), 0) << "step " << run.losses.size();
    fill_values(batch.x, -1.0);  // the caller's again
    run.losses.push_back(loss.item<double>());
  }
  for (const Tensor& parameter : step.module().parameters())
    for (const double value : parameter.to_vector<double>()) run.weights.push_back(value);
  run.replays = train.replays();
  run.obstacle = train.obstacle();
  return run;
}

class CapturedStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "needs a CUDA device: " << cuda::why_unavailable();
  }
  const TrainingStepOptions on_cuda_{.devices = {Device(kCUDA, 0)}};

  void expect_same_bits(const Settings& setup) {
    Settings eager = setup;
    eager.capture = false;
    const Outcome captured = train(setup, on_cuda_), plain = train(eager, on_cuda_);
    EXPECT_EQ(captured.obstacle, "");
    EXPECT_GE(captured.replays, 7u);
    EXPECT_EQ(plain.replays, 0u);
    EXPECT_TRUE(testing::same_bits(captured.losses, plain.losses));
    EXPECT_TRUE(testing::same_bits(captured.weights, plain.weights));
  }
};

TEST_F(CapturedStepTest, ReplaysHaveTheBitsOfSingleKernels) {
  expect_same_bits({});
}

TEST_F(CapturedStepTest, LearningRateAndStepCountComeFromTheDevice) {
  expect_same_bits({.adam = true});
}

TEST_F(CapturedStepTest, GradientsAreClippedInTheGraph) {
  expect_same_bits({.max_grad_norm = 0.01});
  EXPECT_NE(train({.max_grad_norm = 0.01}, on_cuda_).weights, train({}, on_cuda_).weights);
}

TEST_F(CapturedStepTest, EveryReplayDrawsForItsStep) {
  expect_same_bits({.drop = 0.5});
}

TEST_F(CapturedStepTest, EachSizeOfBatchIsWarmedUpAndHasAGraph) {
  Settings setup{.sizes = {8, 8, 5}};
  const Outcome captured = train(setup, on_cuda_, 24);
  setup.capture = false;
  EXPECT_EQ(captured.replays, 24u - 2 * 3);
  EXPECT_TRUE(testing::same_bits(captured.weights, train(setup, on_cuda_, 24).weights));
}

TEST_F(CapturedStepTest, ReplaysAndOtherStepsDrawForOneCount) {
  expect_same_bits({.drop = 0.5, .keys = false, .sizes = {8, 8, 8, 8, 8, 5}});
}

TEST_F(CapturedStepTest, ASizeThatCannotBeCapturedLeavesTheOthersTheirGraphs) {
  const auto run = [&](bool capture) {
    manual_seed(3);
    TrainingStep step([] { return std::make_unique<Net>(); }, on_cuda_);
    optim::SGD optimizer(step.module().parameters(), {.lr = 0.1});
    CapturedStep train(step, optimizer, {.capture = capture});
    for (int i = 0; i < 20; ++i)
      train(batch_of(static_cast<std::uint32_t>(i), i % 2 ? 8 : 5), [](nn::Module& net, const data::Batch& part) {
        const Tensor loss = loss_of(net, part);
        return part.size() == 5 && loss.item<double>() < -1.0 ? -loss : loss;
      });
    EXPECT_EQ(train.replays(), capture ? 7u : 0u);
    std::vector<double> weights;
    for (const Tensor& parameter : step.module().parameters())
      for (const double value : parameter.to_vector<double>()) weights.push_back(value);
    return weights;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(CapturedStepTest, ValuesOfTheHostInTheLossAreRefused) {
  const Outcome captured = train({.brings_values = true}, on_cuda_);
  EXPECT_NE(captured.obstacle.find("while a CUDA graph is captured"), std::string::npos) << captured.obstacle;
  EXPECT_TRUE(testing::same_bits(captured.weights, train({.capture = false, .brings_values = true}, on_cuda_).weights));
}

TEST_F(CapturedStepTest, AModelThatReadsValuesBackRunsWithoutAGraphAndSaysWhy) {
  const Outcome captured = train({.reads_back = true}, on_cuda_);
  const Outcome plain = train({.capture = false, .reads_back = true}, on_cuda_);
  EXPECT_NE(captured.obstacle.find("captur"), std::string::npos) << captured.obstacle;
  EXPECT_EQ(captured.replays, 0u);
  EXPECT_TRUE(testing::same_bits(captured.weights, plain.weights));
}

TEST_F(CapturedStepTest, AgreesWithTheCpu) {
  const Outcome here = train({.drop = 0.25}, on_cuda_), there = train({.drop = 0.25}, {});
  EXPECT_EQ(there.obstacle, "the model is on the CPU");
  ASSERT_EQ(here.weights.size(), there.weights.size());
  for (std::size_t i = 0; i < here.weights.size(); ++i) ASSERT_NEAR(here.weights[i], there.weights[i], 1e-5);
}

TEST_F(CapturedStepTest, AFrozenLayerMakesNewGraphs) {
  const auto run = [&](bool capture) {
    manual_seed(3);
    TrainingStep step([] { return std::make_unique<Net>(); }, on_cuda_);
    optim::SGD optimizer(step.module().parameters(), {.lr = 0.1, .momentum = 0.9});
    CapturedStep train(step, optimizer, {.capture = capture});
    for (int i = 0; i < 16; ++i) {
      if (i == 8) {
        step.module().zero_grad(/*set_to_none=*/true);
        step.module().parameters().front().set_requires_grad(false);
      }
      train(batch_of(static_cast<std::uint32_t>(i), 8), loss_of);
    }
    EXPECT_EQ(train.replays(), capture ? 10u : 0u);
    std::vector<double> weights;
    for (const Tensor& parameter : step.module().parameters())
      for (const double value : parameter.to_vector<double>()) weights.push_back(value);
    return weights;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(CapturedStepTest, InLockstepModeTheObstacleIsNamed) {
  TrainingStepOptions options = on_cuda_;
  options.logical_shards = 4;
  EXPECT_NE(train({}, options, 4).obstacle.find("lockstep mode"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
