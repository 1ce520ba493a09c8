// Ranks of a divided model that read different blocks, or none.

#include <fstream>
#include <iterator>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/averaged_weights.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "tests/distributed/parallel/sharding_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

using lockstep::testing::error_of;
using lockstep::testing::TemporaryPath;

/// What a step of a tower of two blocks ends with on each of two ranks; with `goes_on` another one, behind a good step.
std::vector<std::string> errors_of_step(std::int64_t samples, bool goes_on,
                                        const std::function<LossValue(Tower& tower, int rank)>& loss) {
  std::vector<std::string> errors(2);
  lockstep::testing::run_ranks(
      2, Link::in_process,
      [&](ProcessGroup& group) {
        Tower tower(7, /*depth=*/2);
        TrainingStep step(tower, {.group = group.shared_from_this(), .zero = 3});
        const auto rank = static_cast<std::size_t>(group.rank());
        const LossFunction of_rank = [&](nn::Module&, const data::Batch&) { return loss(tower, group.rank()); };
        const auto optimizer = make_adamw(step);
        for (const bool later : {false, true}) {
          if (later && !goes_on) return;
          if (later) step(make_batch(4), tower_loss);
          errors[rank] = error_of([&] { step(make_batch(samples), of_rank); });
        }
        group.barrier();
      },
      Milliseconds(1500));
  return errors;
}

TEST(ShardingReads, LossesThatCountNothingAreAnErrorWithoutASampleToo) {
  const auto nothing = [](Tower& tower, int) { return LossValue::sum(tower.forward(make_batch(2).x).sum(), 0.0); };
  for (const std::string& error : errors_of_step(1, /*goes_on=*/true, nothing))
    EXPECT_NE(error.find("losses of this batch count 0"), std::string::npos) << error;
}

TEST(ShardingReads, AnOptimizerStepThatOneRankLeavesOutIsNamed) {
  lockstep::testing::run_ranks(2, Link::in_process, [&](ProcessGroup& group) {
    Tower tower(7, /*depth=*/2);
    TrainingStep step(tower, {.group = group.shared_from_this(), .zero = 3});
    const auto optimizer = make_adamw(step);
    step(make_batch(4), tower_loss);
    if (group.rank() == 0) optimizer->step();
    const std::string error = error_of([&] { step(make_batch(4), tower_loss); });
    EXPECT_NE(error.find("stepped 0 times on rank 1 and 1 times on rank 0"), std::string::npos) << error;
  });
}

// Its last gather would meet none of the other's, which waits for its gradients.
TEST(ShardingReads, ABlockThatOneRankReadsOnceMoreIsNamed) {
  const auto errors = errors_of_step(4, /*goes_on=*/false, [](Tower& tower, int rank) {
    Tensor x = tower.in(make_batch(2).x);
    for (Block& block : tower.blocks) x = block(x);
    if (rank == 1) {
      const NoGradGuard values_only;
      tower.blocks[0](x);
    }
    return tower.out(x).square().mean();
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("mismatched collectives: rank 1 called"), std::string::npos) << error;
    EXPECT_NE(error.find("parameters of blocks.1"), std::string::npos) << error;
    EXPECT_NE(error.find("end of the gathers of a pass"), std::string::npos) << error;
  }
}

// As the whole one is: to evaluate, average and save it.
TEST(ShardingReads, APartOfTheModuleMayBeReadAlone) {
  const TemporaryPath path;
  std::string bytes[2];
  for (const int zero : {0, 3})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Tower tower;
      set_tower(tower);
      TrainingStep step(tower, {.group = group, .logical_shards = 2, .zero = zero});
      Block& part = tower.blocks[1];
      AveragedWeights average(part, 0.5);
      auto sgd = std::make_unique<optim::SGD>(part.parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
      std::unique_ptr<optim::Optimizer> optimizer = std::move(sgd);
      if (zero == 3) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
      for (std::uint32_t i = 0; i < 3; ++i) {
        step(make_batch(8, i), tower_loss);
        optimizer->step();
        average.update();
      }
      const auto held = average.hold();
      const data::Batch batch = make_batch(6);
      const auto norm = evaluate(
          part, std::make_shared<data::TensorDataset>(batch.x, batch.y), 1,
          [&](const data::Batch&) { return std::vector<double>{part.up.weight.square().sum().item<double>()}; },
          {.batch_size = 2, .group = group.get()});
      EXPECT_GT(norm[0], 0.0);
      nn::TrainingState state{.step = 3};
      state.extra["norm"] = std::to_string(norm[0]);
      save_checkpoint(path.text(), part, *optimizer, state, *group);
      if (group->rank() > 0) return;
      std::ifstream in(path.text(), std::ios::binary);
      bytes[zero / 3].assign(std::istreambuf_iterator<char>(in), {});
    });
  EXPECT_TRUE(bytes[0] == bytes[1] && !bytes[0].empty());
}

// Who makes divided parameters whole, and only reads them, writes nothing.
TEST(Sharding, HeldAveragesSayThatParametersWereWrittenWhereTheyWere) {
  const TemporaryPath path;
  const auto warnings_of = [&](const std::function<void(TrainingStep&, optim::Optimizer&)>& body) {
    ::testing::internal::CaptureStderr();
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Tower tower;
      set_tower(tower);
      TrainingStep step(tower, {.group = group, .zero = 3});
      const auto optimizer = zero_redundancy<optim::SGD>(step, {.lr = 0.1});
      AveragedWeights average(tower, 0.9);
      for (std::uint32_t i = 0; i < 2; ++i) {
        step(make_batch(8, i), tower_loss);
        optimizer->step();
        average.update();
      }
      const auto held = average.hold();
      body(step, *optimizer);
    });
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warnings_of([](TrainingStep&, optim::Optimizer&) {}), "");
  EXPECT_EQ(warnings_of([](TrainingStep& step, optim::Optimizer&) {
              const WholeParameters whole = step.whole_parameters();
              static_cast<void>(weights_of(step.module()));
            }),
            "");
  EXPECT_EQ(warnings_of([](TrainingStep& step, optim::Optimizer&) {
              const data::Batch batch = make_batch(8);
              const auto loss = [&](const data::Batch& part) {
                return std::vector<double>{tower_loss(step.module(), part).item<double>()};
              };
              evaluate(step.module(), std::make_shared<data::TensorDataset>(batch.x, batch.y), 1, loss,
                       {.batch_size = 4, .group = step.group()});
            }),
            "");
  EXPECT_EQ(warnings_of([&](TrainingStep& step, optim::Optimizer& optimizer) {
              save_checkpoint(path.text(), step.module(), optimizer, {.step = 2}, *step.group());
            }),
            "");
  const std::string lost = "what was written is lost";
  const std::string of_step = warnings_of([](TrainingStep& step, optim::Optimizer& optimizer) {
    step(make_batch(8), tower_loss);
    optimizer.step();
  });
  EXPECT_NE(of_step.find(lost), std::string::npos) << of_step;
  const std::string of_whole = warnings_of([](TrainingStep& step, optim::Optimizer&) {
    const WholeParameters whole = step.whole_parameters();
    copy_values(full({kFeatures}, 9.0), dynamic_cast<Tower&>(step.module()).in.weight.detach()[0]);
  });
  EXPECT_NE(of_whole.find(lost), std::string::npos) << of_whole;
}

}  // namespace
}  // namespace lockstep::distributed
