// Checkpoints that are written while the training goes on.

#include "lockstep/distributed/parallel/async_checkpoint.h"

#include <algorithm>
#include <fstream>
#include <future>
#include <iterator>

#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/sharding/checkpoint_by_shares.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "lockstep/nn/container.h"
#include "tests/distributed/parallel/sharding_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {

/// Writers that begin when they are let go.
struct HeldWriters {
  explicit HeldWriters(AsyncCheckpoint& checkpoint) {
    checkpoint.before_writing_ = [held = gate.get_future().share()] { held.wait(); };
  }
  void let_go() { gate.set_value(); }
  std::promise<void> gate;
};

namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::TemporaryPath;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct SetTower : Tower {
  SetTower() { set_tower(*this); }
};

/// A tower in the middle of its training.
struct Training {
  Training(const ProcessGroupPtr& group, int zero, bool reversed = false)
      : step(tower, {.group = group, .logical_shards = 4, .zero = zero >= 2 ? zero : 0}) {
    std::vector<Tensor> parameters = tower.parameters();
    if (reversed) std::ranges::reverse(parameters);
    auto adamw = std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 0.01});
    if (zero == 1)
      optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(adamw), group);
    else if (zero > 1)
      optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(adamw), step);
    else
      optimizer = std::move(adamw);
    go_on();
  }
  void go_on() {
    for (int i = 0; i < 2; ++i) {
      step(make_batch(9, seed++), tower_loss);
      optimizer->step();
    }
  }
  std::uint32_t seed = 1;
  SetTower tower;
  TrainingStep step;
  std::unique_ptr<optim::Optimizer> optimizer;
};

struct Way {
  int zero, world;
};

TEST(AsyncCheckpoint, IsTheFileThatSaveCheckpointWrites) {
  for (const Way& way : {Way{0, 1}, {0, 2}, {1, 2}, {2, 3}, {3, 2}, {3, 1}}) {
    const TemporaryPath now, later;
    run_on({way.world, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Training training(group, way.zero);
      AsyncCheckpoint checkpoint(*group);
      checkpoint.save(later.text(), training.tower, *training.optimizer, {.step = 1});
      save_checkpoint(now.text(), training.tower, *training.optimizer, {.step = 2}, *group);
      // Waits for the one before, and takes its place.
      checkpoint.save(later.text(), training.tower, *training.optimizer, {.step = 2});
      training.go_on();
      checkpoint.wait();
      EXPECT_TRUE(group->rank() > 0 || bytes_of(later.text()) == bytes_of(now.text()))
          << "ZeRO-" << way.zero << " on " << way.world;
      EXPECT_EQ(load_checkpoint(later.text(), training.tower, *training.optimizer, *group).step, 2);
    });
  }
}

// Of a model on a mesh: the file of its MeshModel, which one process can load. What the caller adds may change too.
TEST(AsyncCheckpoint, IsLoadedByAnOptimizerThatWasGivenTheParametersInAnotherOrder) {
  std::string expected;
  for (const Way& saves : {Way{0, 1}, {1, 2}, {3, 2}}) {
    const TemporaryPath path;
    const auto hash_after_more = [](Training& training) {
      training.seed = 3;
      training.go_on();
      const WholeParameters whole = training.step.whole_parameters();
      return nn::state_sha256(training.tower);
    };
    run_on({saves.world, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Training training(group, saves.zero);
      AsyncCheckpoint checkpoint(*group);
      checkpoint.save(path.text(), training.tower, *training.optimizer, {.step = 2});
      checkpoint.wait();
      if (saves.zero == 0) expected = hash_after_more(training);
    });
    for (const Way& loads : {Way{0, 1}, {1, 2}, {2, 3}, {3, 2}})
      run_on({loads.world, Link::in_process}, [&](const ProcessGroupPtr& group) {
        Training training(group, loads.zero, /*reversed=*/true);
        load_checkpoint(path.text(), training.tower, *training.optimizer, *group);
        EXPECT_EQ(hash_after_more(training), expected) << "ZeRO-" << saves.zero << " by ZeRO-" << loads.zero;
      });
  }
}

TEST(AsyncCheckpoint, OfAMeshIsThatOfOneProcess) {
  const TemporaryPath now, later;
  const auto make = [] {
    auto model = std::make_unique<nn::Sequential>();
    model->add<nn::Linear>(kFeatures, 5);
    model->add<nn::ReLU>();
    model->add<nn::Linear>(5, kClasses);
    return model;
  };
  const auto make_adam = [](std::vector<Tensor> parameters) {
    return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 0.01});
  };
  run_on({4, Link::in_process}, [&](const ProcessGroupPtr& group) {
    const Mesh mesh(group, {.data = 2, .pipeline = 2});
    const auto model = make();
    set_weights(*model);
    const PipelineParallel pipeline(*model, pipeline_layers(*model), {.group = mesh.pipeline()});
    TrainingStep step(*model, {.group = mesh.data(), .accumulate = 2, .model_part = pipeline.part()});
    const MeshModel whole(*model, mesh, &pipeline, nullptr, make, make_adam);
    const auto optimizer = whole.make_optimizer();
    AsyncCheckpoint of_some(*mesh.data()), checkpoint(*group);
    HeldWriters held(checkpoint);
    const nn::TrainingState state{.step = 2, .tensors = {{"mine", full({3}, 1.0)}}};
    for (std::uint32_t i = 0; i < 4; ++i) {
      step(make_batch(8, i), mean_loss);
      optimizer->step();
      if (i != 1) continue;
      EXPECT_NE(error_of([&] {
                  whole.save_checkpoint(later.text(), *optimizer, state, &of_some);
                }).find("of 2, expected one of all ranks of the mesh"),
                std::string::npos);
      whole.save_checkpoint(now.text(), *optimizer, state);
      whole.save_checkpoint(later.text(), *optimizer, state, &checkpoint);
      state.tensors.front().tensor.fill_(2.0);
    }
    held.let_go();
  });
  EXPECT_TRUE(bytes_of(later.text()) == bytes_of(now.text()));
  const auto alone = make();
  const auto optimizer = make_adam(alone->parameters());
  EXPECT_EQ(nn::load_checkpoint(later.text(), *alone, *optimizer).step, 2);
}

// However late they are written.
TEST(AsyncCheckpoint, ValuesAreThoseOfTheMomentOfTheCall) {
  for (const int zero : {0, 1, 2, 3}) {
    const TemporaryPath now, later;
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Training training(group, zero);
      AsyncCheckpoint checkpoint(*group);
      HeldWriters held(checkpoint);
      save_checkpoint(now.text(), training.tower, *training.optimizer, {.step = 2}, *group);
      checkpoint.save(later.text(), training.tower, *training.optimizer, {.step = 2});
      training.go_on();
      held.let_go();
      checkpoint.wait();
      EXPECT_TRUE(group->rank() > 0 || bytes_of(later.text()) == bytes_of(now.text())) << "ZeRO-" << zero;
    });
  }
}

// As one that has no memory for its copies.
TEST(AsyncCheckpoint, ARankWithoutValuesIsAnErrorOfAll) {
  const TemporaryPath path;
  run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Training training(group, 2);
    const auto begin = [&] {
      return CheckpointByShares::begin(path.text(), training.tower, {*training.optimizer}, {.step = 2}, *group, {});
    };
    const auto shares = begin();
    if (group->rank() == 1) shares->fail("out of memory");
    EXPECT_NE(error_of([&] { shares->write(*group); }).find("rank 1 could not write its part of"), std::string::npos);
    EXPECT_NO_THROW(begin()->write(*group)) << "the next one is written";
  });
}

TEST(AsyncCheckpoint, WhatFailsIsThrownOnAllRanksByTheNextCall) {
  for (const int zero : {0, 2})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Training training(group, zero);
      AsyncCheckpoint checkpoint(*group);
      const TemporaryPath path;
      const auto save = [&](const std::string& file, std::int64_t step) {
        checkpoint.save(file, training.tower, *training.optimizer, {.step = step});
      };
      const std::string there = group->broadcast_object(path.text()), nowhere = there + ".d/file";
      const std::string failure = error_of([&] { save(nowhere, 1); });  // at once
      EXPECT_NE(failure.find("No such file or directory"), std::string::npos) << failure;
      EXPECT_NO_THROW(checkpoint.wait()) << "it was told";
      checkpoint.run_on_rank0([] { throw Error("no ink"); });
      EXPECT_NE(error_of([&] { save(there, 2); }).find("no ink"), std::string::npos);
      save(there, 2);
      checkpoint.wait();
      EXPECT_NE(error_of([&] { save(there, 1); }).find("holds step 2"), std::string::npos) << "at once";
      training.go_on();
      checkpoint.run_on_rank0([] { throw Error("nobody asks, so it is a warning"); });
    });
}

TEST(AsyncCheckpoint, MayEndWithWhatIsNoException) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const TemporaryPath file;
    Training training(group, 0);
    AsyncCheckpoint checkpoint(*group);
    checkpoint.set_on_written([](const std::string&, std::int64_t) { throw 42; });
    checkpoint.save(file.text(), training.tower, *training.optimizer, {});
  });
}

// One rank's mistake is an error of all.
TEST(AsyncCheckpoint, AnOptimizerOfOtherParametersIsAnError) {
  for (const int zero : {0, 1, 3})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      const TemporaryPath path;
      Training one(group, zero), other(group, zero);
      AsyncCheckpoint checkpoint(*group);
      optim::Optimizer& given = group->rank() == 1 ? *other.optimizer : *one.optimizer;
      const std::string wanted = "parameter 0 of shape [7, 6] of optimizer 1 (";
      for (const std::string& error : {error_of([&] {
                                         save_checkpoint(path.text(), one.tower, {*one.optimizer, given}, {}, *group);
                                       }),
                                       error_of([&] {
                                         checkpoint.save(path.text(), one.tower, {*one.optimizer, given}, {});
                                       })})
        EXPECT_NE(error.find(wanted), std::string::npos) << error;
      EXPECT_NE(error_of([&] { save_checkpoint(path.text(), one.tower, {}, {}, *group); }).find("no optimizer"),
                std::string::npos);
    });
}

}  // namespace
}  // namespace lockstep::distributed
