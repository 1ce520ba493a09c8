// Each combination that Note [What does not go together] names is refused when the step is made, with its own sentence.

#include "lockstep/distributed/parallel/options.h"

#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

std::unique_ptr<nn::Module> make_net() {
  return std::make_unique<Net>();
}

std::string refusal(const TrainingStepOptions& options) {
  return error_of([&] { TrainingStep step(make_net, options); });
}

TEST(StepOptions, WhatDoesNotGoTogetherIsRefused) {
  const ProcessGroupPtr group = make_single_process_group();
  const std::vector<Device> devices{Device(kCPU, 0), Device(kCPU, 1)};
  for (const char* name : {"RANK", "WORLD_SIZE"}) unsetenv(name);
  const Job job = init();
  const std::vector<std::pair<TrainingStepOptions, const char*>> refused{
      {{.job = &job, .group = group}, "both a job and a group"},
      {{.group = group, .devices = devices}, "leave out devices"},
      {{.hook = bf16_compression()}, "'bf16' was given without a job"},
      {{.accumulate = 0}, "expected at least 1 slice"},
      {{.logical_shards = 4, .accumulate = 2}, "leave it at 1 and raise logical_shards (now 4)"},
      {{.group = group, .logical_shards = 4, .hook = bf16_compression()}, "leave out the hook or logical_shards"},
      {{.logical_shards = 12}, "expected a power of two"},
      {{.devices = devices, .logical_shards = 1}, "2 workers cannot share 1 logical shards"},
  };
  for (const auto& [options, sentence] : refused) {
    const std::string error = refusal(options);
    EXPECT_NE(error.find(sentence), std::string::npos) << error;
  }
}

TEST(StepOptions, AModuleThatExistsHasNoReplicas) {
  Net net;
  const std::string error = error_of([&] { TrainingStep(net, {.devices = {Device(kCPU, 0), Device(kCPU, 1)}}); });
  EXPECT_NE(error.find("pass a factory"), std::string::npos) << error;
}

TEST(StepOptions, AModelWithoutTrainedParametersIsRefused) {
  Net net;
  for (const Tensor& parameter : net.parameters()) parameter.set_requires_grad(false);
  const std::string error = error_of([&] { TrainingStep(net, {.group = make_single_process_group()}); });
  EXPECT_NE(error.find("has no parameter that requires gradients"), std::string::npos) << error;
}

// What would be found out later, by operations that do not match or never come.
TEST(StepOptions, OfRanksThatDifferAreNamed) {
  const auto errors =
      lockstep::testing::errors_of_ranks(2, Link::in_process, std::chrono::seconds(20), [](auto& group) {
        Net net;
        TrainingStep step(net, {.group = group.shared_from_this(), .zero = group.rank() == 0 ? 2 : 0});
      });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("[TrainingStep] the choice of options of rank(s) 1 differs from rank 0's: entry 0 is zero = 0 "
                         "on rank 1 and zero = 2 on rank 0; pass the same options"),
              std::string::npos)
        << error;
}

// On the module's own device, and as a view that does not wait: the value is read when somebody asks.
TEST(StepOptions, AModuleThatExistsIsTrained) {
  Net net;
  set_weights(net);
  const data::Batch batch = make_batch(7);
  const Tensor expected = mean_loss(net, batch);
  TrainingStep step(net);
  const Tensor loss = step(batch, mean_loss);
  EXPECT_EQ(loss.numel(), 1);
  EXPECT_EQ(loss.dtype(), kFloat64);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
  EXPECT_TRUE(net.fc1.weight.grad().defined());
  EXPECT_EQ(&step.module(), &net);
}

}  // namespace
}  // namespace lockstep::distributed
