// Training on CUDA devices: one, several (DataParallel), several ranks (DistributedDataParallel), lockstep mode.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/capture.h"
#include "lockstep/distributed/parallel/data_parallel.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/workers/move_together.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/cuda/cuda_ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::make_input;
using testing::run_cuda_ranks;

struct Net final : nn::Module {
  nn::Conv2d conv{this, "conv", 1, 4, 3};
  nn::BatchNorm2d norm{this, "norm", 4};
  nn::Linear fc1{this, "fc1", 4 * 6 * 6, 20};
  nn::Linear fc2{this, "fc2", 20, 5};
  bool normalises = false;

  Tensor forward(Tensor x) override {
    x = conv(x);
    if (normalises) x = norm(x);
    return fc2(fc1(x.relu().flatten(1)).relu());
  }
};

data::Batch batch_of(int number, std::int64_t size) {
  const auto seed = static_cast<std::uint32_t>(number);
  return {make_input({size, 1, 8, 8}, seed, kFloat32),
          cast_values(make_input({size}, 1000 + seed, kFloat64, 0.0, 5.0), kInt64), size};
}

struct Outcome {
  std::vector<double> losses;
  std::vector<double> weights;
};

constexpr int kSteps = 8;
constexpr std::int64_t kBatch = 13;  // divides by nothing

std::unique_ptr<nn::Module> make_net(bool normalises) {
  auto net = std::make_unique<Net>();
  net->normalises = normalises;
  return net;
}

Outcome values_of(nn::Module& module, std::vector<double> losses) {
  Outcome outcome{std::move(losses), {}};
  for (const Tensor& parameter : module.parameters())
    for (const double value : parameter.to_vector<double>()) outcome.weights.push_back(value);
  return outcome;
}

Tensor loss_of(nn::Module& net, const data::Batch& part) {
  return cross_entropy(net.forward(part.x), part.y);
}

Outcome train(TrainingStep& step, bool capture) {
  optim::SGD optimizer(step.module().parameters(), {.lr = 0.1, .momentum = 0.9});
  CapturedStep run(step, optimizer, {.capture = capture});
  std::vector<double> losses;
  for (int i = 0; i < kSteps; ++i) losses.push_back(run(batch_of(i, kBatch), loss_of).item<double>());
  if (capture) {
    EXPECT_EQ(run.obstacle(), "");
    EXPECT_EQ(run.replays(), static_cast<std::uint64_t>(kSteps - 3));
  }
  return values_of(step.module(), std::move(losses));
}

Outcome train_here(const TrainingStepOptions& options, bool normalises = false) {
  manual_seed(1);
  TrainingStep step([&] { return make_net(normalises); }, options);
  return train(step, false);
}

struct Ranks {
  int world = 2;
  std::int64_t shards = 0;
  bool capture = false;
  bool normalises = false;
};

/// On ranks that are threads. Fails unless all of them end with the same bits.
Outcome train_on_ranks(const Ranks& ranks) {
  std::map<int, Outcome> outcomes;
  std::mutex mutex;
  manual_seed(1);
  // The seed is the process's, the counts of draws are the thread's: all make the same weights.
  run_cuda_ranks(ranks.world, [&](ProcessGroup& group, Device device) {
    auto net = make_net(ranks.normalises);
    net->to(device);
    const ProcessGroupPtr shared(&group, [](auto*) {});
    DistributedDataParallel ddp(*net, shared, {.logical_shards = ranks.shards, .first_bucket_bytes = 1000});
    optim::SGD optimizer(net->parameters(), {.lr = 0.1, .momentum = 0.9});
    std::vector<double> losses;
    for (int i = 0; i < kSteps; ++i) {
      losses.push_back(ddp.step(batch_of(i, kBatch), loss_of).item<double>());
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    outcomes[group.rank()] = values_of(*net, std::move(losses));
  });
  for (const auto& [rank, outcome] : outcomes) {
    EXPECT_EQ(outcome.losses, outcomes[0].losses) << "rank " << rank;
    EXPECT_EQ(outcome.weights, outcomes[0].weights) << "rank " << rank;
  }
  return outcomes[0];
}

void expect_near(const Outcome& actual, const Outcome& expected, double tolerance = 1e-5) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < actual.losses.size(); ++i)
    ASSERT_NEAR(actual.losses[i], expected.losses[i], tolerance) << "step " << i;
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (std::size_t i = 0; i < actual.weights.size(); ++i)
    ASSERT_NEAR(actual.weights[i], expected.weights[i], tolerance);
}

class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "needs a CUDA device: " << cuda::why_unavailable();
  }
  static Device cuda_device(int index) { return {kCUDA, index}; }
};

TEST_F(CudaTraining, OneDeviceAgreesWithTheCpu) {
  for (const bool normalises : {false, true})
    expect_near(train_here({.devices = {cuda_device(0)}}, normalises), train_here({}, normalises), 1e-4);
}

TEST_F(CudaTraining, DataParallelOnOneDeviceTwiceAgreesWithOnce) {
  expect_near(train_here({.devices = {cuda_device(0), cuda_device(0)}}), train_here({.devices = {cuda_device(0)}}));
}

TEST_F(CudaTraining, DataParallelOnSeveralDevicesAgreesWithOne) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(3);
  expect_near(train_here({.devices = {cuda_device(0), cuda_device(1), cuda_device(2)}}),
              train_here({.devices = {cuda_device(0)}}));
}

TEST_F(CudaTraining, TensorsOfADeviceMoveTogether) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  const auto made = [](std::int64_t size, std::uint32_t seed, DType dtype, int index) {
    return move_values(make_input({size, 3}, seed, dtype), Device(kCUDA, index));
  };
  const std::vector<Tensor> tensors{made(5, 1, kFloat32, 1), made(7, 2, kFloat64, 1), Tensor(),
                                    made(3, 3, kFloat32, 1), made(2, 4, kFloat32, 0), made(9, 5, kFloat32, 1)};
  const std::vector<Tensor> moved = move_together(tensors, cuda_device(0));
  ASSERT_EQ(moved.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(moved[i].defined(), tensors[i].defined());
    if (!moved[i].defined()) continue;
    EXPECT_EQ(moved[i].device(), cuda_device(0));
    EXPECT_EQ(moved[i].sizes(), tensors[i].sizes());
    EXPECT_EQ(moved[i].to_vector<double>(), tensors[i].to_vector<double>());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved[i].raw_data()) % 16, 0u);
  }
  EXPECT_TRUE(moved[3].storage() == moved[0].storage());  // one copy brought them
  EXPECT_TRUE(moved[5].storage() == moved[0].storage());
  EXPECT_FALSE(moved[1].storage() == moved[0].storage());
  EXPECT_TRUE(moved[4].is_same(tensors[4]));
}

TEST_F(CudaTraining, RanksAgreeWithOneDevice) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(3);
  const Outcome single = train_here({.devices = {cuda_device(0)}});
  for (const int world : {2, 3}) expect_near(train_on_ranks({.world = world}), single);
}

TEST_F(CudaTraining, LockstepModeGivesTheSameBitsOnAnyNumberOfDevicesAndRanks) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(4);
  const Outcome single = train_here({.devices = {cuda_device(0)}, .logical_shards = 8}, true);
  const auto expect_same = [&](const Outcome& other, const char* what) {
    EXPECT_EQ(other.losses, single.losses) << what;
    EXPECT_EQ(other.weights, single.weights) << what;
  };
  expect_same(train_here({.devices = {cuda_device(0), cuda_device(0)}, .logical_shards = 8}, true), "dp 0,0");
  expect_same(train_here({.devices = {cuda_device(0), cuda_device(1), cuda_device(2)}, .logical_shards = 8}, true),
              "dp 0,1,2");
  expect_same(train_on_ranks({.world = 2, .shards = 8, .normalises = true}), "ddp 2");
  expect_same(train_on_ranks({.world = 3, .shards = 8, .normalises = true}), "ddp 3");
}

TEST_F(CudaTraining, LockstepModeWantsAlgorithmsOfTheSameBits) {
  cuda::set_deterministic(false);
  const std::string error =
      lockstep::testing::error_of([] { train_here({.devices = {cuda_device(0)}, .logical_shards = 8}, true); });
  cuda::set_deterministic(true);
  EXPECT_NE(error.find("call cuda::set_deterministic(true)"), std::string::npos) << error;
}

TEST_F(CudaTraining, GradientsAreViewsOfBuckets) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  run_cuda_ranks(2, [](ProcessGroup& group, Device device) {
    auto net = make_net(false);
    net->to(device);
    DistributedDataParallel ddp(*net, ProcessGroupPtr(&group, [](auto*) {}));
    std::vector<const void*> places;
    for (int i = 0; i < 3; ++i) {
      ddp.step(batch_of(i, kBatch), [&](const data::Batch& part) { return loss_of(*net, part); });
      std::vector<const void*> now;
      std::map<const Storage*, int> storages;
      for (const nn::NamedTensor& parameter : net->named_parameters()) {
        if (!parameter.tensor.grad().defined()) continue;
        now.push_back(parameter.tensor.grad().raw_data());
        ++storages[parameter.tensor.grad().storage().get()];
      }
      EXPECT_EQ(storages.size(), 1u);  // one bucket holds them all
      if (i > 0) {
        EXPECT_EQ(now, places);
      }
      places = now;
    }
  });
}

TEST_F(CudaTraining, ACapturedStepOfSeveralRanksHasTheBitsOfSingleKernels) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  std::map<bool, Outcome> outcomes;
  std::mutex mutex;
  manual_seed(1);
  for (const bool capture : {false, true})
    run_cuda_ranks(2, [&](ProcessGroup& group, Device device) {
      auto net = make_net(true);
      net->to(device);
      DistributedDataParallel ddp(*net, ProcessGroupPtr(&group, [](auto*) {}), {.first_bucket_bytes = 1000});
      const Outcome outcome = train(ddp.training_step(), capture);
      const std::lock_guard lock(mutex);
      if (group.rank() == 0) outcomes[capture] = outcome;
    });
  EXPECT_EQ(outcomes[true].losses, outcomes[false].losses);
  EXPECT_EQ(outcomes[true].weights, outcomes[false].weights);
}

}  // namespace
}  // namespace lockstep::distributed
