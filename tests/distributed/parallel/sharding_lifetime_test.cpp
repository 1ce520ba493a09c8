// Steps and optimizers of a divided model that come and go.

#include <memory>
#include <optional>

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
      const auto optimizer = zero_redundancy<optim::SGD>(*step, optim::SGDOptions{.lr = 0.1});
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

}  // namespace
}  // namespace lockstep::distributed
