// PowerSGD through a checkpoint: a training that goes on from one ends with the bits of one that was not stopped.

#include "lockstep/train/hook_state.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "lockstep/distributed/parallel/reduction/power_sgd.h"
#include "lockstep/nn/checkpoint.h"
#include "tests/distributed/ranks.h"
#include "tests/support/temporary_path.h"
#include "tests/train/training.h"

namespace lockstep::training {
namespace {

using namespace lockstep::testing;

struct Wide : nn::Module {
  nn::Linear fc1{this, "fc1", 6, 16};
  nn::Linear fc2{this, "fc2", 16, 16};
  nn::Linear fc3{this, "fc3", 16, 3};
  Tensor forward(Tensor x) override { return fc3(relu(fc2(relu(fc1(x))))); }
};

std::string train(int ranks, const distributed::PowerSgdOptions* compression, RunOptions options) {
  std::string weights;
  options.progress = Progress::none;
  run_ranks(ranks, Link::in_process, [&](ProcessGroup& group) {
    manual_seed(3);
    RunOptions own = options;
    if (compression) own.hook = distributed::power_sgd(*compression);
    distributed::TrainingStep step([] { return std::make_unique<Wide>(); },
                                   {.group = group.shared_from_this(), .hook = own.hook});
    optim::SGD optimizer(step.module().parameters(), {.lr = 0.1, .momentum = 0.9});
    const data::DataLoader loader(samples(),
                                  {.batch_size = 8, .seed = 3, .rank = group.rank(), .world_size = group.world_size()});
    const auto loss = [](nn::Module& net, const data::Batch& part) {
      return cross_entropy(net.forward(part.x), part.y);
    };
    const Result result = Run(step, optimizer, loader, loss, own).train();
    if (group.rank() == 0) weights = result.weights_sha256;
  });
  return weights;
}

TEST(HookState, PowerSgdGoesOnFromACheckpointWithTheSameBits) {
  const distributed::PowerSgdOptions compression{.rank = 1, .start_iteration = 2, .min_compression = 1.0};
  const testing::TempDir folder;
  const std::string whole = train(2, &compression, {.epochs = 3});
  EXPECT_NE(whole, train(2, nullptr, {.epochs = 3}));
  for (const std::int64_t steps : {1, 5}) {  // before and after the first compressed step
    const std::string path = folder / std::to_string(steps);
    train(2, &compression, {.epochs = 3, .max_steps = steps, .checkpoint = path});
    EXPECT_EQ(train(2, &compression, {.epochs = 3, .resume = path}), whole) << steps;
  }
  const std::string path = folder / "5";
  EXPECT_FALSE(nn::extra_tensors(nn::SafetensorsFile(path)).empty());
  Wide net;
  nn::load(net, path);  // the weights are found as ever

  // Other numbers of ranks have the mean of the errors, with which the training goes on.
  EXPECT_NE(train(3, &compression, {.epochs = 3, .resume = path}), "");
  EXPECT_NE(train(1, &compression, {.epochs = 3, .resume = path}), "");

  ::testing::internal::CaptureStderr();
  train(2, nullptr, {.epochs = 3, .resume = path});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("was trained with --compress powersgd, and this run goes on with none"), std::string::npos)
      << said;
}

}  // namespace
}  // namespace lockstep::training
