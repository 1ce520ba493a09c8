// Divided parameters, gradients and optimizer state: the bits of the undivided step, and what parameters are meanwhile.

#include <chrono>
#include <thread>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/nn/container.h"
#include "tests/distributed/parallel/sharding_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

/// Runs on 1 to 4 ranks with stages 1 (gradients are whole), 2 and 3, in lockstep mode: every hash must be the first
/// one.
void expect_one_hash(ShardedRun run, const std::vector<int>& worlds = {1, 2, 3, 4}) {
  run.zero = 0;
  const std::string expected = trained_hash(run, make_single_process_group());
  for (const int zero : {0, 2, 3})
    for (const int world : worlds) {
      run.zero = zero;
      run_on({world, Link::in_process}, [&](const ProcessGroupPtr& group) {
        EXPECT_EQ(trained_hash(run, group), expected) << "ZeRO-" << zero << " on " << world << " ranks";
      });
    }
  run.batches.back() += 1;
  run.zero = 0;
  EXPECT_NE(trained_hash(run, make_single_process_group()), expected) << "the hash must tell runs apart";
}

TEST(Sharding, LockstepHasOneHashOnAllStagesAndRanks) {
  expect_one_hash({});
}

// Ranks without samples, from the first step on, and with fewer logical shards than others.
TEST(Sharding, LockstepHasOneHashWithShortBatches) {
  expect_one_hash({.batches = {3, 13, 1, 8, 2}});
}

TEST(Sharding, LockstepHasOneHashInMixedPrecision) {
  expect_one_hash({.loss = [](nn::Module& module, const data::Batch& part) {
    Tensor logits;
    {
      const AutocastGuard bf16(kBFloat16, DeviceType::cpu);
      logits = module.forward(part.x);
    }
    return cross_entropy(logits.to(kFloat32), part.y);
  }});
}

// Rounded values are those of any number of ranks; what is kept of them is not rounded.
TEST(Sharding, LockstepHasOneHashWhereParametersTravelAsBfloat16) {
  ShardedRun run{.zero = 3, .batches = {13, 3, 16}, .gather = kBFloat16};
  const std::string expected = trained_hash(run, make_single_process_group());
  for (const int world : {2, 3, 4})
    run_on({world, Link::in_process},
           [&](const ProcessGroupPtr& group) { EXPECT_EQ(trained_hash(run, group), expected) << world << " ranks"; });
  run.gather = kFloat32;
  EXPECT_NE(trained_hash(run, make_single_process_group()), expected);
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    const std::string before = nn::state_sha256(tower);
    TrainingStep step(tower, {.group = group, .zero = 3, .gather_dtype = kBFloat16});
    const auto optimizer = make_adamw(step);
    step(make_batch(8), tower_loss);
    const WholeParameters whole = step.whole_parameters();
    EXPECT_EQ(nn::state_sha256(tower), before);
  });
}

TEST(Sharding, LockstepHasOneHashWithUnitsOfTheProgramsChoice) {
  expect_one_hash({.units = {"blocks.1.up", "in", "blocks.0"}}, {1, 3});
}

struct Recomputed : Tower {
  Tensor forward(Tensor x) override {
    x = in(x);
    for (Block& block : blocks) x = nn::recompute(block, x);
    return out(x) * scale + shift;
  }
};

TEST(Sharding, LockstepHasOneHashWithRecomputedBlocks) {
  expect_one_hash({.make = [] { return std::make_unique<Recomputed>(); }}, {2, 3});
}

/// Blocks run twice, in another order than they stand in, and one never; the head is tied to a block's weight.
struct Knotted : Tower {
  Knotted() : Tower(7, 4) { blocks[2].up.bias.set_requires_grad(false); }
  Tensor forward(Tensor x) override {
    x = in(x);
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{0}})
      x = blocks[i](x);
    x = linear(x, blocks[0].up.weight, Tensor());
    return out(x) * scale + shift;
  }
};

TEST(Sharding, LockstepHasOneHashWhereBlocksRunTwiceAndOutOfOrder) {
  expect_one_hash({.make = [] { return std::make_unique<Knotted>(); }});
}

/// A frozen layer in front of a trained one: backward reads it when all gradients of the block are there.
struct Adapted : nn::Module {
  explicit Adapted(const bool& reads) : reads_(reads) { base.set_requires_grad(false); }
  nn::Linear base{this, "base", 5, 5}, adapter{this, "adapter", 5, 5};
  Tensor forward(Tensor x) override { return adapter(relu(reads_ ? base(x) : x)); }

 private:
  const bool& reads_;
};

struct AdaptedTower : nn::Module {
  AdaptedTower() {
    for (int i = 0; i < 3; ++i) blocks.add(reads);
  }
  bool reads = true;
  nn::Linear in{this, "in", kFeatures, 5};
  nn::ModuleList<Adapted> blocks{this, "blocks"};
  nn::Linear out{this, "out", 5, kClasses};
  Tensor forward(Tensor x) override {
    x = in(x);
    for (Adapted& block : blocks) x = block(x);
    return out(x);
  }
};

// As experts that a router chooses: what one rank reads another may not, in backward either.
TEST(Sharding, FrozenLayersMayBeReadByOneRankAlone) {
  const auto train = [](const ProcessGroupPtr& group, int zero, bool all_read) {
    AdaptedTower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .zero = zero});
    std::unique_ptr<optim::Optimizer> optimizer = std::make_unique<optim::SGD>(tower.parameters(), optim::SGDOptions{});
    if (zero > 0) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
    int gathers = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      tower.reads = all_read || group->rank() == static_cast<int>(i % 2);
      const auto shards = ParameterShards::of(tower);
      const int before = shards ? count_operations(shards->group(), OperationKind::all_gather) : 0;
      step(make_batch(7, i + 1), tower_loss);
      if (shards) gathers = count_operations(shards->group(), OperationKind::all_gather) - before;
      optimizer->step();
    }
    // What the ranks tell each other, what lies outside of the blocks, and trained and frozen parameters of three
    // blocks forward and two backward: no block twice in a direction.
    EXPECT_EQ(gathers, zero > 0 ? 1 + 1 + 2 * (3 + 2) : 0);
    const WholeParameters whole = step.whole_parameters();
    return weights_of(tower);
  };
  for (const bool all_read : {true, false})
    lockstep::testing::run_ranks(
        2, Link::in_process,
        [&](ProcessGroup& each) {
          const ProcessGroupPtr group(ProcessGroupPtr(), &each);
          EXPECT_EQ(largest_difference(train(group, 3, all_read), train(group, 0, all_read)), 0.0) << all_read;
        },
        Milliseconds(8'000));
}

TEST(Sharding, RunsOnOtherBackends) {
  ShardedRun run;
  const std::string expected = trained_hash(run, make_single_process_group());
  run.zero = 3;
  for (const Link link : {Link::gloo, Link::shm})
    run_on({3, link}, [&](const ProcessGroupPtr& group) { EXPECT_EQ(trained_hash(run, group), expected); });
}

// --- what parameters are between steps
// ----------------------------------------------------------------------------------

TEST(Sharding, ParametersAreReadOnlyWhereAllRanksRead) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    const Values before = weights_of(tower);
    TrainingStep step(tower, {.group = group, .zero = 3});
    const std::string error = error_of([&] { tower.blocks[1].up.weight.to_vector<float>(); });
    EXPECT_NE(error.find("'blocks.1' are divided over 2 ranks"), std::string::npos) << error;
    EXPECT_NE(error.find("whole_parameters()"), std::string::npos) << error;
    EXPECT_NE(error_of([&] { nn::weights_sha256(tower); }), "");
    {
      const WholeParameters whole = step.whole_parameters();
      EXPECT_EQ(largest_difference(weights_of(tower), before), 0.0);
      const WholeParameters again = step.whole_parameters();
      fill_values(tower.blocks[1].up.weight, 0.25);
      EXPECT_NE(error_of([&] { step(make_batch(8), tower_loss); }).find("let go of them"), std::string::npos);
    }
    EXPECT_NE(error_of([&] { tower.blocks[1].up.weight.to_vector<float>(); }), "");
    const WholeParameters whole = step.whole_parameters();
    EXPECT_EQ(tower.blocks[1].up.weight.to_vector<float>(), std::vector<float>(49, 0.25F));
  });
}

TEST(Sharding, AnOptimizerThatWouldFindNoGradientsIsAnError) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    TrainingStep step(tower, {.group = group, .zero = 2});
    optim::SGD undivided(tower.parameters(), {.lr = 0.1});
    step(make_batch(8), tower_loss);
    undivided.step();
    EXPECT_NE(error_of([&] { step(make_batch(8), tower_loss); }).find("no ZeroRedundancyOptimizer was made"),
              std::string::npos);
  });
}

TEST(Sharding, ParametersOfAStepThatIsGoneSaySo) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    { const TrainingStep step(tower, {.group = group, .zero = 3}); }
    EXPECT_NE(error_of([&] { tower.in.weight.to_vector<float>(); }).find("a step that is gone"), std::string::npos);
  });
}

// --- PyTorch's idiom
// ------------------------------------------------------------------------------------------------------

/// Weights after two updates by `pass`, which leaves gradients.
Values idiom(const ProcessGroupPtr& group, int zero,
             const std::function<void(DistributedDataParallel&, const data::Batch&)>& pass) {
  Knotted model;
  set_tower(model);
  for (Block& block : model.blocks) block.drop.eval();
  DistributedDataParallel ddp(model, group, {.zero = zero});
  const auto optimizer = zero_redundancy<optim::AdamW>(ddp.training_step(), optim::AdamWOptions{.lr = 0.01});
  for (std::uint32_t i = 1; i <= 2; ++i) {
    optimizer->zero_grad();
    pass(ddp, make_batch(6, 10 * i + static_cast<std::uint32_t>(group->rank())));
    optimizer->step();
  }
  const WholeParameters whole = ddp.training_step().whole_parameters();
  return weights_of(model);
}

void expect_same_in_idiom(const std::function<void(DistributedDataParallel&, const data::Batch&)>& pass) {
  for (const int zero : {2, 3})
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      EXPECT_LE(largest_difference(idiom(group, zero, pass), idiom(group, 0, pass)), 1e-6) << "ZeRO-" << zero;
    });
}

TEST(Sharding, TwoForwardsBeforeOneBackward) {
  expect_same_in_idiom([](DistributedDataParallel& ddp, const data::Batch& batch) {
    const Tensor first = cross_entropy(ddp(batch.x), batch.y);
    (first + cross_entropy(ddp(batch.x * 0.5), batch.y)).backward();
  });
}

TEST(Sharding, BackwardTwiceThroughARetainedGraph) {
  expect_same_in_idiom([](DistributedDataParallel& ddp, const data::Batch& batch) {
    const Tensor loss = cross_entropy(ddp(batch.x), batch.y);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST(Sharding, ForwardWithoutGradientsBetweenForwardAndBackward) {
  expect_same_in_idiom([](DistributedDataParallel& ddp, const data::Batch& batch) {
    const Tensor loss = cross_entropy(ddp(batch.x), batch.y);
    {
      const NoGradGuard no_grad;
      EXPECT_EQ(cross_entropy(ddp(batch.x), batch.y).item<float>(), loss.item<float>());
    }
    loss.backward();
  });
}

TEST(Sharding, HooksOfParametersSeeWholeGradients) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .zero = 3});
    int seen = 0;
    const Tensor weight = tower.blocks[0].up.weight;
    weight.register_hook([&](const Tensor& grad) {
      ++seen;
      EXPECT_EQ(grad.sizes(), weight.sizes());
      return Tensor();
    });
    step(make_batch(8), tower_loss);
    EXPECT_EQ(seen, 1);
    EXPECT_FALSE(weight.grad().defined());
  });
}

// --- errors
// ---------------------------------------------------------------------------------------------------------------

TEST(Sharding, AnExceptionInForwardGivesParametersBack) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .zero = 3});
    const auto optimizer = make_adamw(step);
    bool fails = true;
    const LossFunction loss = [&](nn::Module& module, const data::Batch& part) -> LossValue {
      const Tensor out = module.forward(part.x);
      if (fails) throw Error("a loss that fails");
      return cross_entropy(out, part.y);
    };
    EXPECT_EQ(error_of([&] { step(make_batch(8), loss); }), "a loss that fails");
    EXPECT_NE(error_of([&] { tower.in.weight.to_vector<float>(); }), "");
    EXPECT_NE(error_of([&] { tower.blocks[2].up.weight.to_vector<float>(); }), "");
    fails = false;
    step(make_batch(8), loss);
    optimizer->step();
    const WholeParameters whole = step.whole_parameters();
  });
}

// Between the gather of a block and its release.
TEST(Sharding, ARankThatEndsInForwardEndsTheOthersWithAName) {
  const auto errors =
      lockstep::testing::errors_of_ranks(3, Link::in_process, Milliseconds(1500), [&](ProcessGroup& group) {
        Tower tower;
        TrainingStep step(tower, {.group = group.shared_from_this(), .zero = 3});
        step(make_batch(9), [&](nn::Module& module, const data::Batch& part) -> LossValue {
          if (group.rank() == 1) {
            tower.blocks[0](tower.in(part.x));
            std::this_thread::sleep_for(Milliseconds(300));  // until the others wait for its part of a block
            throw Error("rank 1 ends here");
          }
          return tower_loss(module, part);
        });
      });
  EXPECT_EQ(errors[1], "rank 1 ends here");
  for (const int rank : {0, 2}) {
    const std::string& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_NE(error.find("parameters of blocks."), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  }
}

TEST(Sharding, RefusesWhatDoesNotGoTogether) {
  const ProcessGroupPtr alone = make_single_process_group();
  Tower tower;
  const auto refused = [&](TrainingStepOptions options) {
    return error_of([&] { TrainingStep step(tower, options); });
  };
  const std::vector<std::pair<TrainingStepOptions, const char*>> rows{
      {{.group = alone, .zero = 1}, "zero is 1; expected 2"},
      {{.zero = 2}, "without a job or group"},
      {{.group = alone, .zero = 3, .hook = fp16_compression()}, "works on whole gradients"},
      {{.group = alone, .static_graph = true, .zero = 2}, "static_graph is for whole gradients"},
      {{.group = alone, .zero = 2, .shard_units = {"blocks.0"}}, "expected 3"},
      {{.group = alone, .zero = 3, .shard_units = {"blocks.9"}}, "names 'blocks.9'"},
      {{.group = alone, .zero = 2, .gather_dtype = kBFloat16}, "gather_dtype is bfloat16 with zero = 2"},
      {{.group = alone, .zero = 3, .gather_dtype = kFloat16}, "gather_dtype is float16"},
      {{.group = alone, .zero = 2, .gather_within = 1}, "gather_within is 1 with zero = 2"},
      {{.group = alone, .zero = 3, .gather_within = 2}, "gather_within is 2, and there are 1 ranks"},
      {{.group = alone, .zero = 3, .shard_units = {"blocks", "blocks.0"}}, "one of which holds the other"},
  };
  for (const auto& [options, text] : rows)
    EXPECT_NE(refused(options).find(text), std::string::npos) << text << ": " << refused(options);
  TrainingStep step(tower, {.group = alone, .zero = 3});
  EXPECT_NE(refused({.group = alone, .zero = 3}).find("divided by another step"), std::string::npos);
  EXPECT_NE(step.capture_obstacle().find("divided"), std::string::npos);
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower divided;
    const TrainingStep on_two(divided, {.group = group, .zero = 3});
    EXPECT_NE(error_of([&] { evaluate(divided, nullptr, 1, nullptr); }).find("pass their group"), std::string::npos);
  });
}

}  // namespace
}  // namespace lockstep::distributed
