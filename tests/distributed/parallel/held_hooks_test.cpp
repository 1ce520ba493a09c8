// Hooks of parameters' gradients where these are the sum of several: an optimizer that steps in backward() does what
// one does behind it.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/distributed/parallel/data_parallel.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr std::int64_t kSteps = 4;

/// An optimizer for each parameter, which steps as soon as the gradient is there and takes it away.
class InBackward {
 public:
  explicit InBackward(const nn::Module& module) {
    for (const Tensor& parameter : module.parameters()) {
      optimizers_.push_back(std::make_unique<optim::SGD>(std::vector<Tensor>{parameter}, sgd()));
      optim::Optimizer& own = *optimizers_.back();
      parameter.register_post_accumulate_grad_hook([this, &own](const Tensor&) {
        own.step();
        own.zero_grad();
        ++calls;
      });
    }
  }
  static optim::SGDOptions sgd() { return {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}; }

  int calls = 0;

 private:
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;
};

data::Batch batch_of(std::int64_t step) {
  return make_batch(8 + step % 3, static_cast<std::uint32_t>(step + 1));
}

Values train_alone() {
  Net net;
  set_weights(net);
  optim::SGD optimizer(net.parameters(), InBackward::sgd());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    net.zero_grad();
    mean_loss(net, batch_of(step)).backward();
    optimizer.step();
  }
  return weights_of(net);
}

class HeldHooksOver : public ::testing::TestWithParam<World> {};

TEST_P(HeldHooksOver, AnOptimizerInBackwardStepsWithTheAverage) {
  const Values one = train_alone();
  for (const bool before : {true, false})  // the hooks are older than the ranks' own, or younger
    run_on(GetParam(), [&](const ProcessGroupPtr& group) {
      Net net;
      set_weights(net);
      std::unique_ptr<InBackward> optimizer;
      if (before) optimizer = std::make_unique<InBackward>(net);
      DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64});
      if (!before) optimizer = std::make_unique<InBackward>(net);
      for (std::int64_t step = 0; step < kSteps; ++step)
        ddp.step(batch_of(step), [&](const data::Batch& part) { return mean_loss(net, part); });
      EXPECT_LE(largest_difference(weights_of(net), one), 1e-5);
      EXPECT_EQ(optimizer->calls, 4 * kSteps);
    });
}

TEST_P(HeldHooksOver, PassesThatOnlyAccumulateRunNone) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    const auto train = [&](bool in_backward) {
      Net net;
      set_weights(net);
      std::unique_ptr<InBackward> inside;
      if (in_backward) inside = std::make_unique<InBackward>(net);
      optim::SGD behind(net.parameters(), InBackward::sgd());
      DistributedDataParallel ddp(net, group);
      for (std::int64_t step = 0; step < kSteps; ++step) {
        const data::Batch batch = make_batch(5, static_cast<std::uint32_t>(10 * step + group->rank()));
        {
          const NoSync accumulating = ddp.no_sync();
          cross_entropy(ddp(batch.x), batch.y).backward();
          if (inside) {
            EXPECT_EQ(inside->calls, 4 * step);
          }
        }
        cross_entropy(ddp(batch.x * 0.5), batch.y).backward();
        if (inside) continue;
        behind.step();
        behind.zero_grad();
      }
      return weights_of(net);
    };
    EXPECT_EQ(train(true), train(false));
  });
}

TEST_P(HeldHooksOver, RanksThatHaveRunOutStepToo) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    InBackward optimizer(net);
    DistributedDataParallel ddp(net, group);
    for (std::int64_t step = 0;; ++step) {
      const data::Batch own =
          step <= group->rank() ? make_batch(3, static_cast<std::uint32_t>(step + 1)) : data::Batch();
      if (!ddp.join_step(own, [&](const data::Batch& part) { return mean_loss(net, part); })) break;
    }
    EXPECT_EQ(optimizer.calls, 4 * group->world_size());
    const std::vector<std::string> hashes = group->all_gather_object(nn::weights_sha256(net));
    for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes.front());
  });
}

/// Two branches, of which each rank takes one, and a spare one.
TEST_P(HeldHooksOver, HooksRunWhereAnyRankHasUsedTheParameter) {
  struct Branches : nn::Module {
    nn::Linear a{this, "a", kFeatures, kClasses}, b{this, "b", kFeatures, kClasses}, spare{this, "spare", 2, 2};
  };
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Branches net;
    set_weights(net);
    std::vector<std::string> ran;
    for (const auto& [name, parameter] : net.named_parameters())
      parameter.register_post_accumulate_grad_hook([&ran, name = name](const Tensor& leaf) {
        EXPECT_TRUE(leaf.grad().defined());
        ran.push_back(name);
      });
    DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64});
    const data::Batch batch = make_batch(8);
    ddp.step(batch, [&](const data::Batch& part) {
      return cross_entropy((group->rank() % 2 == 0 ? net.a : net.b)(part.x), part.y);
    });
    std::vector<std::string> expected{"b.bias", "b.weight", "a.bias", "a.weight"};
    if (group->world_size() == 1) expected.erase(expected.begin(), expected.begin() + 2);
    EXPECT_EQ(ran, expected);
  });
}

Values lockstep_bits(const ProcessGroupPtr& group, int devices) {
  const auto make = [] {
    auto net = std::make_unique<Net>();
    set_weights(*net);
    return net;
  };
  TrainingStepOptions options{.group = group, .logical_shards = 4};
  if (devices > 0) options.devices.assign(static_cast<std::size_t>(devices), kCPU);
  TrainingStep step(make, options);
  InBackward optimizer(step.module());
  for (std::int64_t s = 0; s < kSteps; ++s) step(batch_of(s), mean_loss);
  EXPECT_EQ(optimizer.calls, 4 * kSteps);
  return weights_of(step.module());
}

TEST_P(HeldHooksOver, InLockstepModeTheBitsAreThoseOfOneProcess) {
  const Values one = lockstep_bits(nullptr, 0);
  EXPECT_LE(largest_difference(one, train_alone()), 1e-5);
  EXPECT_EQ(lockstep_bits(nullptr, 3), one);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) { EXPECT_EQ(lockstep_bits(group, 0), one); });
}

TEST_P(HeldHooksOver, WhereGradientsAreDividedAHookIsAnError) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    net.fc2.bias.register_post_accumulate_grad_hook([](const Tensor&) {});
    DistributedDataParallel ddp(net, group, {.zero = 2});
    EXPECT_EQ(error_of([&] { ddp.step(make_batch(8), [&](const data::Batch& p) { return mean_loss(net, p); }); }),
              "[TrainingStep] parameter 'fc2.bias' has a hook of register_post_accumulate_grad_hook(), which is called "
              "with the average over ranks; where gradients are divided over them (zero = 2 or 3) no rank has it. Step "
              "the ZeroRedundancyOptimizer after backward(), or use register_hook(), which sees the gradient of this "
              "rank");
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, HeldHooksOver, all_worlds(), world_name);

TEST(HeldHooks, SlicesAndReplicasOfOneProcess) {
  const Values one = train_alone();
  for (const int devices : {0, 1, 3})
    for (const std::int64_t slices : {1, 3}) {
      TrainingStepOptions options{.accumulate = slices};
      options.devices.assign(static_cast<std::size_t>(devices), kCPU);
      const auto make = [] {
        auto net = std::make_unique<Net>();
        set_weights(*net);
        return net;
      };
      TrainingStep step(make, options);
      InBackward optimizer(step.module());
      for (std::int64_t s = 0; s < kSteps; ++s) step(batch_of(s), mean_loss);
      EXPECT_LE(largest_difference(weights_of(step.module()), one), 1e-5) << devices << " devices, " << slices;
      EXPECT_EQ(optimizer.calls, 4 * kSteps);
    }
}

}  // namespace
}  // namespace lockstep::distributed
