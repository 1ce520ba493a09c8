// Batches that are not x and y: without targets, and of several named tensors. Trained on one device, several devices,
// ranks, and in lockstep mode.

#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/distributed/parallel/step.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr std::int64_t kSamples = 11;

// Two inputs: features, and the number of a row of a table.
struct TwoInputs : nn::ModuleOf<TwoInputs> {
  nn::Linear fc{this, "fc", kFeatures, 4};
  nn::Linear table{this, "table", kClasses, 4};
  Tensor forward(const Tensor& features, const Tensor& one_hot) { return fc(features) * table(one_hot); }
};

data::Batch two_inputs() {
  data::Batch batch;
  batch.tensors["features"] = make_input({kSamples, kFeatures}, 1, kFloat32);
  batch.tensors["class"] = make_batch(kSamples).y;
  batch.tensors["weight"] = make_input({kSamples, 1}, 2, kFloat64, 0.5, 1.5);
  return batch;
}

Tensor loss_of(nn::Module& module, const data::Batch& part) {
  const Tensor classes = part["class"].view({part.size(), 1});
  const Tensor one_hot = cast_values(eq(classes, tensor<std::int64_t>({0, 1, 2})), kFloat32);
  const Tensor out = static_cast<TwoInputs&>(module)(part["features"], one_hot);
  return (out * out * cast_values(part["weight"], kFloat32)).mean();
}

// The mean of the squares: there is nothing to compare with.
Tensor loss_without_targets(nn::Module& module, const data::Batch& part) {
  const Tensor out = module.forward(part.x);
  return (out * out).mean();
}

struct Mode {
  int devices;
  std::int64_t shards;
};
const Mode kModes[] = {{1, 0}, {2, 0}, {1, 4}, {3, 4}};

template <typename M>
Values gradients_on_devices(const Mode& mode, const data::Batch& batch, const LossFunction& loss) {
  TrainingStep step(
      [] { return std::make_unique<M>(); },
      {.devices = std::vector<Device>(static_cast<std::size_t>(mode.devices)), .logical_shards = mode.shards});
  set_weights(step.module());
  EXPECT_TRUE(std::isfinite(step(batch, loss).template item<double>()));
  return gradients_of(step.module());
}

template <typename M>
void expect_the_gradients_of_one_process(const data::Batch& batch, const LossFunction& loss) {
  M alone;
  set_weights(alone);
  loss(alone, batch).value().backward();
  const Values expected = gradients_of(alone);
  for (const Mode& mode : kModes)
    EXPECT_LT(largest_difference(gradients_on_devices<M>(mode, batch, loss), expected), 1e-6)
        << mode.devices << " devices, " << mode.shards << " shards";
  for (const std::int64_t shards : {0, 4})
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      M net;
      set_weights(net);
      TrainingStep step(net, {.group = group, .logical_shards = shards});
      EXPECT_TRUE(std::isfinite(step(batch, loss).template item<double>()));
      EXPECT_LT(largest_difference(gradients_of(net), expected), 1e-6) << shards << " shards";
    });
}

TEST(StepOnABatch, OfNamedTensors) {
  expect_the_gradients_of_one_process<TwoInputs>(two_inputs(), loss_of);
}

TEST(StepOnABatch, WithoutTargets) {
  expect_the_gradients_of_one_process<Net>({.x = make_batch(kSamples).x}, loss_without_targets);
}

TEST(StepOnABatch, OfTensorsThatDifferInSizeIsRefused) {
  Net net;
  TrainingStep step(net);
  data::Batch batch = make_batch(4);
  batch.tensors["mask"] = ones({3});
  const std::string error = error_of([&] { step(batch, mean_loss); });
  EXPECT_NE(error.find("[Batch] 'mask' has 3 samples and 'x' has 4"), std::string::npos) << error;
}

// A rank's own samples would be taken for the whole batch, of which it computes a part.
TEST(Batches, OfARanksOwnSamplesAreToSaySo) {
  const auto log_of = [](bool own, bool says_so) {
    ::testing::internal::CaptureStderr();
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Net net;
      set_weights(net);
      TrainingStep step(net, {.group = group});
      for (std::uint32_t i = 0; i < 4; ++i) {
        data::Batch batch =
            make_batch(4, own ? static_cast<std::uint32_t>(2 * i) + static_cast<std::uint32_t>(group->rank()) : i);
        if (says_so) batch.global_size = 8;
        step(batch, mean_loss);
      }
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string log = log_of(true, false);
  EXPECT_NE(log.find("rank 1 was given another batch of 4 samples than rank 0"), std::string::npos) << log;
  EXPECT_EQ(log.find("another batch", log.find("another batch") + 1), std::string::npos) << "once: " << log;
  EXPECT_EQ(log_of(true, true), "");
  EXPECT_EQ(log_of(false, false), "");
}

// Where each rank has one logical shard no rank sees two, and what differs between them is noticed in the step.
TEST(Batches, WithRowsOfDifferentKindsAreRefusedInLockstepMode) {
  constexpr std::int64_t kShards = 4, kBatch = 6;  // the last shards have one sample
  for (const int ranks : {2, 3, 4})
    for (const int zero : {0, 2})
      for (const std::string what : {"nothing", "width", "dtype", "name"})
        run_on({ranks, Link::in_process}, [&](const ProcessGroupPtr& group) {
          Net net;
          set_weights(net);
          TrainingStep step(net, {.group = group, .logical_shards = kShards, .zero = zero});
          const data::Range mine = samples_of_worker(kBatch, kShards, ranks, group->rank());
          data::Batch part = part_of(make_batch(kBatch), mine.begin, mine.size());
          const bool other = group->rank() == ranks - 1;
          part.tensors["mask"] = zeros({mine.size(), other && what == "width" ? 3 : 2},
                                       {.dtype = other && what == "dtype" ? kFloat64 : kFloat32});
          if (other && what == "name") part.tensors["length"] = zeros({mine.size()});
          if (what == "nothing") {
            EXPECT_TRUE(std::isfinite(step(part, mean_loss).item<double>()));
            return;
          }
          const std::string error = error_of([&] { step(part, mean_loss); });
          EXPECT_NE(error.find("[lockstep] the logical shards of this batch differ between the ranks"),
                    std::string::npos)
              << error;
          EXPECT_NE(error.find(other && what == "width" ? "'mask' float32 [3]" : "'x' float32 [6]"), std::string::npos)
              << error;
        });
}

// Ranks count the comparisons alike, also where one was given what is no batch and went on.
TEST(Batches, ThatAreRefusedOnOneRankEndNothing) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    TrainingStep step(net, {.group = group});
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (group->rank() == 1) {
        data::Batch bad = make_batch(4, i);
        bad.y = bad.y.narrow(0, 0, 3);
        EXPECT_NE(error_of([&] { step(bad, mean_loss); }), "");
        bad = make_batch(4, i);
        bad.global_size = -1;
        EXPECT_NE(error_of([&] { step(bad, mean_loss); }), "");
      }
      EXPECT_TRUE(std::isfinite(step(make_batch(4, i), mean_loss).item<double>()));
    }
  });
}

}  // namespace
}  // namespace lockstep::distributed
