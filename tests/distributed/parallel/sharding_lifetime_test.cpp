// Steps and optimizers of a divided model that come and go.

#include <memory>
#include <optional>

#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "tests/distributed/parallel/sharding_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

// Of an optimizer that has gone, and of another step of the module.
TEST(Sharding, GradientsThatNobodyWouldUseAreAnError) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    std::optional<TrainingStep> step(std::in_place, tower, TrainingStepOptions{.group = group, .zero = 2});
    {
      const auto optimizer = zero_redundancy<optim::SGD>(*step, {.lr = 0.1});
      (*step)(make_batch(8), tower_loss);
      optimizer->step();
      EXPECT_NE(error_of([&] { TrainingStep(tower, {.group = group, .zero = 2}); }).find("another step"),
                std::string::npos);
      (*step)(make_batch(8), tower_loss);
    }
    EXPECT_NE(error_of([&] { (*step)(make_batch(8), tower_loss); }).find("no ZeroRedundancyOptimizer was made"),
              std::string::npos);
    step.reset();
    TrainingStep(tower, {.group = group, .zero = 2});
  });
}

TEST(Sharding, AStepWithItsOwnModelMayBeAssigned) {
  const auto make = [] {
    return TrainingStep([] { return std::make_unique<Tower>(); }, {.group = make_single_process_group(), .zero = 3});
  };
  TrainingStep step = make();
  step = make();
  const auto optimizer = zero_redundancy<optim::SGD>(step, optim::SGDOptions{.lr = 0.1});
  step(make_batch(8), tower_loss);
  optimizer->step();
}

// What a pass that an exception broke off has not handed over goes with zero_grad().
TEST(Sharding, ZeroGradDropsWhatNoPassHasTaken) {
  for (const int zero : {2, 3})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      const auto train = [&](bool fails) {
        Tower tower;
        set_tower(tower);
        DistributedDataParallel ddp(tower, group, {.zero = zero});
        const auto optimizer = zero_redundancy<optim::SGD>(ddp.training_step(), {.lr = 0.1});
        const data::Batch part = part_of(make_batch(8), group->rank() * 4, 4);
        const auto backward = [&] { cross_entropy(ddp(part.x), part.y).backward(); };
        const auto accumulated = [&] {
          manual_seed(1);
          optimizer->zero_grad();
          {
            const NoSync guard = ddp.no_sync();
            backward();
          }
          backward();
        };
        if (fails) {
          const std::uint64_t hook = tower.blocks[1].up.weight.register_hook([n = 0](const Tensor&) mutable {
            if (++n == 2) throw Error("in a hook");
          });
          EXPECT_EQ(error_of(accumulated), "in a hook");
          tower.blocks[1].up.weight.remove_hook(hook);
        }
        accumulated();
        optimizer->step();
        const WholeParameters whole = ddp.training_step().whole_parameters();
        return weights_of(tower);
      };
      EXPECT_EQ(largest_difference(train(true), train(false)), 0.0) << zero;
    });
}

}  // namespace
}  // namespace lockstep::distributed
