// Steps in float16 as CUDA graphs: the loss scale, overflows and steps that are left out are the device's business.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/capture.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::make_input;

struct Net final : nn::Module {
  nn::Linear first{this, "first", 12, 16};
  nn::Linear last{this, "last", 16, 5};

  Tensor forward(Tensor x) override { return last(first(x).relu()); }
};

data::Batch batch_of(std::uint32_t number, std::int64_t size) {
  const Tensor x = make_input({size, 12}, number, kFloat32);
  const Tensor y = cast_values(make_input({size}, 1000 + number, kFloat64, 0.0, 5.0), kInt64);
  return {x, y, size};
}

struct Settings {
  bool capture = true;
  const char* optimizer = "SGD";
  DType loss = kFloat32;
  bool sums = false;         // the loss is a sum and its count
  bool reads = false;        // losses and state after each step
  bool eager_fives = false;  // batches of 5 cannot be captured
  double init_scale = 65536.0;
  int reload = -1;  // before this step a state is loaded
  std::vector<std::int64_t> sizes = {8};
};

struct Outcome {
  std::vector<double> losses, weights, scales;
  std::vector<std::int64_t> steps;  // of each parameter
  optim::GradScalerState scaler{};
  std::uint64_t replays = 0;
  std::string obstacle;
};

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& type, std::vector<Tensor> parameters) {
  // Formulas that know their first step, and the number of each.
  if (type == "SGD")
    return std::make_unique<optim::SGD>(std::move(parameters),
                                        optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 0.01});
}

std::vector<std::int64_t> steps_of(const optim::Optimizer& optimizer) {
  return optimizer.state().tensors.front().tensor.to_vector<std::int64_t>();
}

constexpr int kSteps = 24;

Outcome train(const Settings& setup) {
  manual_seed(3);
  TrainingStep step([] { return std::make_unique<Net>(); }, {.devices = {Device(kCUDA, 0)}});
  const auto optimizer = make_optimizer(setup.optimizer, step.module().parameters());
  optim::GradScaler scaler(
      {.init_scale = setup.init_scale, .growth_factor = 8.0, .backoff_factor = 0.25, .growth_interval = 3});
  CapturedStep train(step, *optimizer, {.capture = setup.capture, .warmup = 1, .scaler = &scaler});
  const auto loss = [&](nn::Module& net, const data::Batch& part) -> LossValue {
    const AutocastGuard autocast(kFloat16, kCUDA);
    const Tensor value = cross_entropy(net.forward(part.x), part.y).to(setup.loss);
    if (setup.eager_fives && part.size() == 5) value.item<double>();
    if (setup.sums) return LossValue::sum(value * 8.0, 8.0);
    return value;
  };
  Outcome run;
  for (int i = 0; i < kSteps; ++i) {
    if (setup.reload == i) {
      scaler.load_state({.scale = 4096.0, .good_steps = 1});
      optim::OptimizerState state = optimizer->state();
      for (nn::NamedTensor& t : state.tensors)
        if (t.name == "steps") t.tensor = tensor(std::vector<std::int64_t>(4, 2));
      optimizer->load_state(state);
    }
    const std::int64_t size = setup.sizes[static_cast<std::size_t>(i) % setup.sizes.size()];
    optimizer->set_lr(0.05 / (1 + i));
    const Tensor value = train(batch_of(static_cast<std::uint32_t>(i), size), loss);
    EXPECT_EQ(value.dim(), 0) << "step " << i;
    if (setup.reads) {
      run.losses.push_back(value.item<double>());
      run.scales.push_back(scaler.scale_factor());
      for (const std::int64_t number : steps_of(*optimizer)) run.steps.push_back(number);
    }
  }
  for (const Tensor& parameter : step.module().parameters())
    for (const double weight : parameter.to_vector<double>()) run.weights.push_back(weight);
  for (const std::int64_t number : steps_of(*optimizer)) run.steps.push_back(number);
  run.scaler = scaler.state();
  run.replays = train.replays();
  run.obstacle = train.obstacle();
  return run;
}

class CapturedScaledStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "needs a CUDA device: " << cuda::why_unavailable();
  }

  static void expect_same_bits(const Settings& setup, std::uint64_t replays = kSteps - 1) {
    Settings plain = setup;
    plain.capture = false;
    const Outcome captured = train(setup), eager = train(plain);
    EXPECT_EQ(captured.obstacle, "");
    EXPECT_EQ(captured.replays, replays);
    EXPECT_EQ(eager.replays, 0u);
    EXPECT_TRUE(testing::same_bits(captured.losses, eager.losses));
    EXPECT_EQ(captured.scales, eager.scales);
    EXPECT_TRUE(testing::same_bits(captured.weights, eager.weights));
    EXPECT_EQ(captured.steps, eager.steps);
    EXPECT_EQ(captured.scaler.scale, eager.scaler.scale);
    EXPECT_EQ(captured.scaler.good_steps, eager.scaler.good_steps);
    // Else nothing was tried here: steps are left out, but not all.
    EXPECT_LT(eager.steps.back(), kSteps - 3);
    EXPECT_GT(eager.steps.back(), kSteps / 2);
  }
};

TEST_F(CapturedScaledStep, ReplaysHaveTheBitsOfSingleKernels) {
  for (const char* optimizer : {"SGD", "AdamW"}) {
    SCOPED_TRACE(optimizer);
    expect_same_bits({.optimizer = optimizer});
  }
  expect_same_bits({.optimizer = "AdamW", .reads = true});
}

TEST_F(CapturedScaledStep, TheFirstStepsAreLeftOut) {
  for (const char* optimizer : {"SGD", "AdamW"}) expect_same_bits({.optimizer = optimizer, .init_scale = 0x1p26});
}

TEST_F(CapturedScaledStep, LossesOfEachTypeAreScaledAlike) {
  for (const DType dtype : {kFloat16, kFloat64}) {
    SCOPED_TRACE(name(dtype));
    expect_same_bits({.loss = dtype, .sums = dtype == kFloat64, .reads = true, .init_scale = 1024.0});
  }
}

TEST_F(CapturedScaledStep, StepsWithAndWithoutAGraphGoOnFromEachOther) {
  expect_same_bits({.optimizer = "AdamW", .eager_fives = true, .sizes = {8, 8, 8, 5, 6, 8, 8}}, 19);
}

TEST_F(CapturedScaledStep, LoadedStatesCountFromThereOn) {
  Settings setup{.optimizer = "AdamW", .reads = true, .reload = 9};
  const Outcome captured = train(setup);
  setup.capture = false;
  const Outcome eager = train(setup);
  EXPECT_TRUE(testing::same_bits(captured.weights, eager.weights));
  EXPECT_EQ(captured.steps, eager.steps);
  EXPECT_EQ(captured.scales, eager.scales);
}

TEST_F(CapturedScaledStep, RanksThatMustAgreeHaveNoGraph) {
  TrainingStep step([] { return std::make_unique<Net>(); }, {.devices = {Device(kCUDA, 0)}});
  optim::SGD optimizer(step.module().parameters(), {.lr = 0.1});
  optimizer.set_agreement([](bool finite) { return finite; });
  optim::GradScaler scaler;
  const CapturedStep train(step, optimizer, {.scaler = &scaler});
  EXPECT_NE(train.obstacle().find("ranks agree"), std::string::npos) << train.obstacle();
}

TEST_F(CapturedScaledStep, CopiesOfAScalerAreTheirOwn) {
  manual_seed(3);
  TrainingStep step([] { return std::make_unique<Net>(); }, {.devices = {Device(kCUDA, 0)}});
  optim::SGD optimizer(step.module().parameters(), {.lr = 0.1});
  optim::GradScaler scaler({.init_scale = 4.0, .growth_interval = 1});
  CapturedStep train(step, optimizer, {.warmup = 1, .scaler = &scaler});
  const auto loss = [](nn::Module& net, const data::Batch& part) { return cross_entropy(net.forward(part.x), part.y); };
  for (std::uint32_t i = 0; i < 4; ++i) train(batch_of(i, 8), loss);
  const optim::GradScaler copy = scaler;
  EXPECT_EQ(copy.scale_factor(), 64.0);
  train(batch_of(4, 8), loss);
  EXPECT_EQ(copy.scale_factor(), 64.0);
  EXPECT_EQ(scaler.scale_factor(), 128.0);
  scaler = copy;
  train(batch_of(5, 8), loss);
  EXPECT_EQ(scaler.scale_factor(), 128.0);
  EXPECT_EQ(train.replays(), 5u);
  EXPECT_NE(error_of([&] { scaler.record_step(optimizer); }).find("for work that is captured"), std::string::npos);
}

// A device that is emulated does its work when somebody waits for it, so whether somebody did can be seen.
TEST_F(CapturedScaledStep, ReplaysWaitForNothingLately) {
  if (!cuda::device_name(0).starts_with("emulated")) GTEST_SKIP() << "a GPU may be done before it is asked";
  manual_seed(3);
  TrainingStep step([] { return std::make_unique<Net>(); }, {.devices = {Device(kCUDA, 0)}});
  optim::AdamW optimizer(step.module().parameters(), {.lr = 0.1});
  optim::GradScaler scaler;
  CapturedStep train(step, optimizer, {.warmup = 1, .scaler = &scaler});
  const auto loss = [](nn::Module& net, const data::Batch& part) { return cross_entropy(net.forward(part.x), part.y); };
  for (std::uint32_t i = 0; i < 12; ++i) {
    train(batch_of(i, 8).map([](const Tensor& tensor) { return tensor.to(Device(kCUDA, 0)); }), loss);
    if (i == 0) continue;  // the warm-up
    cuda::Event done(0);
    done.record(cuda::Stream::current(0));
    EXPECT_FALSE(done.is_done()) << "step " << i;
  }
  EXPECT_EQ(train.replays(), 11u);
}

}  // namespace
}  // namespace lockstep::distributed
