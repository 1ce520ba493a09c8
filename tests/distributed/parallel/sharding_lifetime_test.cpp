// Steps and optimizers of a divided model that come and go.

#include <sys/resource.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/allocator.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/sharding/checkpoint_by_shares.h"
#include "tests/distributed/parallel/sharding_support.h"
#include "tests/support/temporary_path.h"

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

// Those that a step keeps are divided; whoever drops the gradients of the model or of some parameters drops them too.
TEST(Sharding, ZeroGradOfTheModuleAndOfOtherOptimizersDropsDividedGradients) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    const auto train = [&](int zero, bool by_module) {
      Tower tower;
      set_tower(tower);
      DistributedDataParallel ddp(tower, group, {.zero = zero});
      std::vector<Tensor> some, others;  // neighbours in the same buckets
      for (const Tensor& parameter : tower.parameters())
        (some.size() > others.size() ? others : some).push_back(parameter);
      const auto make = [&](const std::vector<Tensor>& parameters) -> std::unique_ptr<optim::Optimizer> {
        auto sgd = std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
        if (zero == 0) return sgd;
        return std::make_unique<ZeroRedundancyOptimizer>(std::move(sgd), ddp.training_step());
      };
      const auto first = make(some), second = make(others);
      for (std::uint32_t i = 0; i < 5; ++i) {
        const data::Batch part = part_of(make_batch(8, i), group->rank() * 4, 4);
        manual_seed(i + 1);  // of dropout
        cross_entropy(ddp(part.x), part.y).backward();
        if (i == 0 || i == 2) {  // a loss that is left out
          by_module ? tower.zero_grad() : (first->zero_grad(), second->zero_grad());
        } else if (i == 3) {  // by one of the two
          first->zero_grad();
        } else {
          first->step();
          second->step();
          tower.zero_grad();
        }
      }
      const WholeParameters whole = ddp.training_step().whole_parameters();
      return weights_of(tower);
    };
    const Values expected = train(0, true);
    for (const int zero : {2, 3})
      for (const bool by_module : {false, true})
        EXPECT_LT(largest_difference(train(zero, by_module), expected), 1e-6) << zero << by_module;
  });
}

// Momentum and weight decay move what has a gradient of zeros, and what has none stays.
TEST(Sharding, ZeroGradWithoutSetToNoneLeavesZeros) {
  using ZeroGrad = std::function<void(Tower&, optim::Optimizer&, optim::Optimizer&)>;
  const std::vector<ZeroGrad> ways = {
      [](Tower&, optim::Optimizer& first, optim::Optimizer&) { first.zero_grad(false); },
      [](Tower&, optim::Optimizer&, optim::Optimizer& second) { second.zero_grad(false); },
      [](Tower& tower, optim::Optimizer&, optim::Optimizer&) { tower.zero_grad(false); },
      [](Tower& tower, optim::Optimizer&, optim::Optimizer&) { tower.blocks[1].zero_grad(false); },
      [](Tower& tower, optim::Optimizer& first, optim::Optimizer&) { first.zero_grad(), tower.zero_grad(false); },
  };
  for (const int world : {1, 2, 3})
    run_on({world, Link::in_process}, [&](const ProcessGroupPtr& group) {
      const auto train = [&](int zero, const ZeroGrad& clear) {
        Tower tower;
        set_tower(tower);
        TrainingStep step(tower, {.group = group, .logical_shards = 8, .zero = zero});
        std::vector<Tensor> some, others;  // neighbours in the same buckets
        for (const Tensor& parameter : tower.parameters())
          (some.size() > others.size() ? others : some).push_back(parameter);
        std::unique_ptr<optim::Optimizer> first =
            std::make_unique<optim::SGD>(some, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
        std::unique_ptr<optim::Optimizer> second = std::make_unique<optim::AdamW>(others, optim::AdamWOptions{});
        if (zero > 0) {
          first = std::make_unique<ZeroRedundancyOptimizer>(std::move(first), step);
          second = std::make_unique<ZeroRedundancyOptimizer>(std::move(second), step);
        }
        for (std::uint32_t i = 0; i < 4; ++i) {
          step(make_batch(12, i), tower_loss);
          if (i % 2 == 1) clear(tower, *first, *second);
          clip_grad_norm_({*first, *second}, 0.5);
          first->step();
          second->step();
        }
        const WholeParameters whole = step.whole_parameters();
        return nn::state_sha256(tower);
      };
      for (std::size_t way = 0; way < ways.size(); ++way) {
        const std::string expected = train(0, ways[way]);
        for (const int zero : {2, 3}) EXPECT_EQ(train(zero, ways[way]), expected) << world << zero << way;
      }
    });
}

// A rank that cannot open the file which rank 0 has begun says why.
TEST(Sharding, WritingACheckpointByRanksNeedsADescriptorOfEach) {
  const lockstep::testing::TemporaryPath path;
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .zero = 3});
    const auto optimizer = zero_redundancy<optim::SGD>(step, {.lr = 0.1});
    const auto begun = CheckpointByShares::begin(path.text(), tower, {*optimizer}, {.step = 1}, *group, {});
    ASSERT_TRUE(begun);
    group->barrier()->wait();
    rlimit none = before;
    none.rlim_cur = 3;
    ::setrlimit(RLIMIT_NOFILE, &none);
    group->barrier()->wait();
    const std::string error = error_of([&] { begun->write(*group); });
    group->barrier()->wait();
    ::setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_NE(error.find("cannot open "), std::string::npos) << error;
    EXPECT_NE(error.find(": Too many open files"), std::string::npos) << error;
  });
}

// What holds the parameters whole may go last: after the step, its module, or both.
TEST(Sharding, WholeParametersMayOutliveStepAndModule) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    const auto make = [&] {
      return TrainingStep([] { return std::make_unique<Tower>(); }, {.group = group, .zero = 3});
    };
    {
      std::optional<TrainingStep> step(make());
      const Tensor weight = step->module().parameters().front();
      std::optional<WholeParameters> whole(step->whole_parameters());
      const std::vector<double> values = weight.to_vector<double>();
      *step = make();
      EXPECT_EQ(weight.to_vector<double>(), values) << "those of the step before";
      const WholeParameters later = step->whole_parameters();
      step.reset();
      whole.reset();
      EXPECT_EQ(weight.to_vector<double>(), values);
    }
    auto tower = std::make_unique<Tower>();
    std::optional<TrainingStep> step(std::in_place, *tower, TrainingStepOptions{.group = group, .zero = 3});
    (*step)(make_batch(8), tower_loss);
    const WholeParameters whole = step->whole_parameters();
    tower.reset();
    step.reset();
  });
}

// Its parameters have values again if they had when it went; else all ranks are told what to do.
TEST(Sharding, AModuleMayHaveAnotherStepWhenTheFirstIsGone) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    const std::string hash = nn::state_sha256(tower);
    std::optional<TrainingStep> step(std::in_place, tower, TrainingStepOptions{.group = group, .zero = 3});
    {
      const WholeParameters whole = step->whole_parameters();
      step.reset();
    }
    EXPECT_EQ(nn::state_sha256(tower), hash);
    step.emplace(tower, TrainingStepOptions{.group = group, .zero = 3});
    step.reset();
    for (const int zero : {0, 3}) {
      const std::string error = error_of([&] { TrainingStep(tower, {.group = group, .zero = zero}); });
      EXPECT_NE(error.find("'in.weight'"), std::string::npos) << error;
      EXPECT_NE(error.find("whole_parameters()"), std::string::npos) << error;
    }
    // Of one that only some ranks have lost all ranks hear.
    Tower other;
    step.emplace(other, TrainingStepOptions{.group = group, .zero = 3});
    {
      std::optional<WholeParameters> whole(step->whole_parameters());
      if (group->rank() == 0) step.reset();
      whole.reset();
      step.reset();
    }
    EXPECT_NE(error_of([&] { TrainingStep(other, {.group = group}); }).find("differs from rank 0"), std::string::npos);
  });
}

// Where another module has been at the same address.
TEST(Sharding, AModuleIsNotTakenForOneBeforeIt) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    std::optional<Tower> tower(std::in_place);
    std::optional<TrainingStep> step(std::in_place, *tower, TrainingStepOptions{.group = group, .zero = 3});
    const auto before = zero_redundancy<optim::SGD>(*step, optim::SGDOptions{.lr = 0.1});
    step.reset();
    tower.emplace();
    step.emplace(*tower, TrainingStepOptions{.group = group, .zero = 3});
    EXPECT_NE(error_of([&] { before->step(); }).find("is gone"), std::string::npos);
  });
}

// Its parts would have been read beyond their end.
TEST(Sharding, ParametersThatWereCastWhileWholeAreAnError) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    std::optional<TrainingStep> step(std::in_place, tower, TrainingStepOptions{.group = group, .zero = 3});
    {
      const WholeParameters whole = step->whole_parameters();
      tower.to(kFloat64);
    }
    const std::string error = error_of([&] { (*step)(make_batch(8), tower_loss); });
    EXPECT_NE(error.find("was moved, cast or replaced, and is float64"), std::string::npos) << error;
    step.reset();
    tower.to(kFloat32);
    step.emplace(tower, TrainingStepOptions{.group = group, .zero = 3});
    (*step)(make_batch(8), tower_loss);
  });
}

TEST(Sharding, ParametersAreReplacedWhileWhole) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .zero = 3});
    const auto optimizer = make_adamw(step);
    const Tensor weight = tower.blocks[0].up.weight;
    const auto replacement = [&](Shape sizes) { return make_input(sizes, 3, kFloat32); };
    const Tensor turned = replacement({weight.size(1), weight.size(0)}).transpose(0, 1);
    {
      const WholeParameters whole = step.whole_parameters();
      nn::replace_value(weight, turned);
    }
    {
      const WholeParameters whole = step.whole_parameters();
      EXPECT_EQ(weight.to_vector<double>(), turned.contiguous().to_vector<double>());
    }
    {
      const WholeParameters whole = step.whole_parameters();
      nn::replace_value(weight, replacement({1}));
    }
    const auto error = [&] { return error_of([&] { step(make_batch(8), tower_loss); }); };
    EXPECT_NE(error().find("replaced, and is float32 [1]"), std::string::npos) << error();
    nn::replace_value(weight, turned);
    step(make_batch(8), tower_loss);  // it fits again
    optimizer->step();
    nn::replace_value(weight, replacement(turned.sizes()));
    EXPECT_NE(error().find("was replaced while its values were divided"), std::string::npos) << error();
  });
}

// Only until the backward that follows is over.
TEST(Sharding, ValuesWhoseAddressesTheUserTookAreNotKept) {
  Tower tower(64);
  DistributedDataParallel ddp(tower, make_single_process_group(), {.zero = 3});
  const auto optimizer = zero_redundancy<optim::SGD>(ddp.training_step(), optim::SGDOptions{.lr = 0.1});
  const data::Batch batch = make_batch(4);
  std::vector<std::size_t> kept;
  for (int i = 0; i < 5; ++i) {
    const Tensor loss = cross_entropy(ddp(batch.x), batch.y);
    EXPECT_NE(tower.blocks[2].up.weight.data<float>(), nullptr);
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    kept.push_back(allocator(DeviceType::cpu).stats(Device()).in_use);
  }
  EXPECT_EQ(kept[4], kept[2]);
}

}  // namespace
}  // namespace lockstep::distributed
