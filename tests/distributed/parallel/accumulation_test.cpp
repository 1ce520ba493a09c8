// Gradients of a step computed in slices, against one process that computes the batch at once.

#include <set>

#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/data_parallel.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/step.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr double kBound = 1e-6;  // of gradients up to 0.4, in float32

// A sum over the samples of classes 0 and 1, and how many those are: uneven over any slices.
LossValue counted_loss(nn::Module& module, const data::Batch& part) {
  const Tensor logits = module.forward(part.x);
  std::vector<float> weights;
  double count = 0.0;
  for (const std::int64_t label : part.y.to_vector<std::int64_t>()) {
    weights.push_back(label < 2 ? 1.0f : 0.0f);
    count += weights.back();
  }
  const auto n = static_cast<std::int64_t>(weights.size());
  return LossValue::sum(mul(logits.logsumexp({1}), tensor(weights, part.x.device()).view({n})).sum(), count);
}

struct Expected {
  double loss;
  Values gradients;
};

Expected alone(const data::Batch& batch, bool counted) {
  Net net;
  set_weights(net);
  const LossValue value = counted ? counted_loss(net, batch) : mean_loss(net, batch);
  const Tensor loss = counted ? mul(value.value(), 1.0 / *value.count()) : value.value();
  loss.backward();
  return {loss.item<double>(), gradients_of(net)};
}

class AccumulationOver : public ::testing::TestWithParam<World> {};

TEST_P(AccumulationOver, GradientsAreThoseOfTheWholeBatch) {
  for (const bool counted : {false, true})
    for (const std::int64_t n : {13, 8, 2}) {
      const data::Batch batch = make_batch(n);
      const Expected expected = alone(batch, counted);
      for (const std::int64_t slices : {1, 2, 3, 20}) {
        SCOPED_TRACE(::testing::Message() << "counted " << counted << ", samples " << n << ", slices " << slices);
        run_on(GetParam(), [&](const ProcessGroupPtr& group) {
          Net net;
          set_weights(net);
          DistributedDataParallel ddp(net, group, {.accumulate = slices, .first_bucket_bytes = 32, .bucket_bytes = 64});
          for (int repeat = 0; repeat < 2; ++repeat) {
            const Tensor loss = ddp.step(batch, [&](const data::Batch& part) {
              return counted ? counted_loss(net, part) : LossValue(mean_loss(net, part));
            });
            EXPECT_NEAR(loss.item<double>(), expected.loss, kBound);
            EXPECT_LE(largest_difference(gradients_of(net), expected.gradients), kBound);
          }
        });
      }
    }
}

TEST_P(AccumulationOver, CommunicatesInTheLastSliceOnly) {
  const data::Batch batch = make_batch(24);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    if (group->world_size() == 1) return;
    const auto operations = [&](std::int64_t slices) {
      Net net;
      DistributedDataParallel ddp(net, group, {.accumulate = slices, .first_bucket_bytes = 32, .bucket_bytes = 64});
      const int before = count_operations(*group, OperationKind::all_reduce);
      std::int64_t calls = 0;
      ddp.step(batch, [&](const data::Batch& part) {
        ++calls;
        return mean_loss(net, part);
      });
      EXPECT_EQ(calls, slices);
      return count_operations(*group, OperationKind::all_reduce) - before;
    };
    EXPECT_EQ(operations(1), operations(4));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, AccumulationOver, all_worlds(), world_name);

TEST(Accumulation, AMeanOverSlicesWouldShow) {
  // What a loop without weights makes of slices of 5, 4 and 4 samples.
  const data::Batch batch = make_batch(13);
  Net net;
  set_weights(net);
  std::int64_t row = 0;
  for (const std::int64_t size : {5, 4, 4}) {
    mul(mean_loss(net, part_of(batch, row, size)), 1.0 / 3.0).backward();
    row += size;
  }
  EXPECT_GT(largest_difference(gradients_of(net), alone(batch, false).gradients), 100 * kBound);
}

TEST(Accumulation, AlsoOnOneDeviceAndSeveral) {
  for (const bool counted : {false, true}) {
    const data::Batch batch = make_batch(13);
    const Expected expected = alone(batch, counted);
    for (const int devices : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << "counted " << counted << ", devices " << devices);
      TrainingStepOptions options{.accumulate = 3};
      for (int d = 0; d < devices; ++d) options.devices.emplace_back(kCPU, d);
      TrainingStep step([] { return std::make_unique<Net>(); }, options);
      set_weights(step.module());
      const Tensor loss = step(batch, [&](nn::Module& net, const data::Batch& part) {
        return counted ? counted_loss(net, part) : LossValue(mean_loss(net, part));
      });
      EXPECT_NEAR(loss.item<double>(), expected.loss, kBound);
      EXPECT_LE(largest_difference(gradients_of(step.module()), expected.gradients), kBound);
    }
  }
}

TEST(Accumulation, SlicesDrawDifferentNumbers) {
  struct Dropped : nn::Module {
    nn::Linear fc{this, "fc", kFeatures, 64};
    nn::Dropout dropout{this, "dropout", 0.5};
    Tensor forward(Tensor x) override { return dropout(fc(x)); }
  };
  Dropped net;
  set_weights(net);
  DistributedDataParallel ddp(net, make_single_process_group(), {.accumulate = 2});
  std::set<std::vector<float>> seen;
  data::Batch batch;
  batch.x = ones({2, kFeatures});
  batch.y = zeros({2}, {.dtype = kInt64});
  ddp.step(batch, [&](const data::Batch& part) {
    const Tensor out = net(part.x);
    seen.insert(out.to_vector<float>());
    return out.mean();
  });
  EXPECT_EQ(seen.size(), 2u);
}

// A layer that the first slice alone uses is no unused one; its gradient counts.
TEST(Accumulation, AParameterOfAnEarlierSliceIsUsed) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group, {.accumulate = 2});
    int call = 0;
    ddp.step(make_batch(8),
             [&](const data::Batch& part) { return call++ == 0 ? mean_loss(net, part) : net.fc1(part.x).mean(); });
    EXPECT_TRUE(ddp.unused_parameters().empty());
    EXPECT_GT(largest_difference({net.fc2.weight.grad().to_vector<double>()}, {std::vector<double>(15, 0.0)}), 1e-3);
    ddp.step(make_batch(8), [&](const data::Batch& part) { return net.fc1(part.x).mean(); });
    EXPECT_EQ(ddp.unused_parameters(), (std::vector<std::string>{"fc2.weight", "fc2.bias"}));
  });
}

TEST(Accumulation, AnExceptionInASliceLeavesTheStepUsable) {
  Net net;
  set_weights(net);
  const data::Batch batch = make_batch(12);
  const Expected expected = alone(batch, false);
  DataParallel parallel([] { return std::make_unique<Net>(); }, {Device(kCPU, 0)}, {.accumulate = 3});
  set_weights(parallel.module());
  DistributedDataParallel ddp(net, make_single_process_group(), {.accumulate = 3});
  int calls = 0;
  const auto failing = [&](nn::Module& module, const data::Batch& part) {
    if (++calls == 2) throw Error("slice 2 fell over");
    return mean_loss(module, part);
  };
  EXPECT_EQ(error_of([&] { ddp.step(batch, [&](const data::Batch& part) { return failing(net, part); }); }),
            "slice 2 fell over");
  calls = 0;
  EXPECT_EQ(error_of([&] { parallel.step(batch, failing); }), "slice 2 fell over");
  ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); });
  EXPECT_LE(largest_difference(gradients_of(net), expected.gradients), kBound);
  parallel.step(batch, mean_loss);
  EXPECT_LE(largest_difference(gradients_of(parallel.module()), expected.gradients), kBound);
}

TEST(Accumulation, IsRefusedWhereLockstepModeImpliesIt) {
  Net net;
  const auto message = [](const std::string& error) {
    return error.find("logical_shards (now 4)") != std::string::npos;
  };
  EXPECT_TRUE(message(error_of(
      [&] { DistributedDataParallel(net, make_single_process_group(), {.logical_shards = 4, .accumulate = 2}); })));
  EXPECT_TRUE(message(
      error_of([&] { TrainingStep([] { return std::make_unique<Net>(); }, {.logical_shards = 4, .accumulate = 2}); })));
  EXPECT_NE(error_of([&] {
              DistributedDataParallel(net, make_single_process_group(), {.accumulate = 0});
            }).find("at least 1 slice"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
