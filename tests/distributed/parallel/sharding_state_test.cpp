// What divided parameters cost in memory and messages, and their checkpoints.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "lockstep/core/allocator.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"
#include "tests/distributed/parallel/sharding_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::TemporaryPath;

AllocatorStats stats() {
  return allocator(DeviceType::cpu).stats(Device());
}

// Large enough that what every rank has besides is little.
constexpr std::int64_t kWidth = 128;
constexpr int kDepth = 14;

/// Bytes of all ranks together, which are threads of this process, as multiples of the parameters' bytes.
struct Cost {
  double kept = 0;  ///< between two steps
  double peak = 0;  ///< in a step
};

/// `zero` 0: DDP, 1: its optimizer's state alone is divided.
Cost cost_of(int zero, int world, std::int64_t width = kWidth, int depth = kDepth) {
  Cost cost;
  std::size_t before = 0;
  run_on({world, Link::in_process}, [&](const ProcessGroupPtr& group) {
    group->barrier()->wait();
    if (group->rank() == 0) before = stats().in_use;
    group->barrier()->wait();
    Tower tower(width, depth);
    const auto bytes = static_cast<double>(tower.num_bytes());
    TrainingStep step(
        tower, {.group = group, .first_bucket_bytes = 100'000, .bucket_bytes = 100'000, .zero = zero >= 2 ? zero : 0});
    const auto optimizer = zero > 0 ? make_adamw(step) : std::make_unique<optim::AdamW>(tower.parameters());
    const auto train = [&] {
      step(make_batch(8), tower_loss);
      optimizer->clip_grad_norm_(1.0);
      optimizer->step();
    };
    train();
    optimizer->zero_grad(/*set_to_none=*/true);
    group->barrier()->wait();
    if (group->rank() == 0) {
      cost.kept = static_cast<double>(stats().in_use - before) / bytes / world;
      allocator(DeviceType::cpu).reset_peak(Device());
    }
    group->barrier()->wait();
    train();
    group->barrier()->wait();
    if (group->rank() == 0) cost.peak = static_cast<double>(stats().peak - before) / bytes / world;
    group->barrier()->wait();
  });
  return cost;
}

/// The least of three: a rank that the machine holds up leaves the others with more on their way than they need.
double peak_of(int zero, int world) {
  return std::min({cost_of(zero, world).peak, cost_of(zero, world).peak, cost_of(zero, world).peak});
}

// Parameters and Adam's two, as the allocator counts them, of which 1 / W is due to a rank; at sizes that are cut into
// parts just above a power of two, and any others.
TEST(ShardingMemory, WhatZero3KeepsIsAPartOfTheWhole) {
  for (const std::int64_t width : {97, 128, 181})
    for (const int world : {2, 3, 4}) {
      const double kept = cost_of(3, world, width, width < 128 ? 10 : 6).kept;
      std::printf("width %ld, kept by a rank of %d: %.3f of the whole\n", width, world, kept / 3.0);
      EXPECT_LE(kept, 1.1 / world * 3.0) << "width " << width << ", " << world << " ranks";
      EXPECT_GE(kept, 3.0 / world) << "less than there is: the test counts wrong";
    }
}

// A step of ZeRO-1 gathers the new values a small part of the model at a time.
TEST(ShardingMemory, DividingTheStateAloneNeedsLessThanNothingDivided) {
  const double whole = peak_of(0, 2), divided = peak_of(1, 2);
  std::printf("peak bytes a rank of 2, in parameters: DDP %.2f, ZeRO-1 %.2f\n", whole, divided);
  EXPECT_GE(whole, 4.0);
  EXPECT_LE(divided, whole - 0.7);
}

// At its peak a step of ZeRO-3 has a few of the blocks besides.
TEST(ShardingMemory, PeaksFallWithTheStage) {
  const double one = peak_of(1, 4), two = peak_of(2, 4), three = peak_of(3, 4);
  std::printf("peak bytes a rank of 4, in parameters: ZeRO-1 %.2f, ZeRO-2 %.2f, ZeRO-3 %.2f\n", one, two, three);
  EXPECT_GE(one, 2.5);
  EXPECT_LE(two, one - 0.4);
  EXPECT_LE(three, 1.0 + 0.8);
}

std::int64_t bytes_of(const ProcessGroup& group, OperationKind kind) {
  std::int64_t bytes = 0;
  for (const OperationRecord& record : group.records())
    if (record.operation.kind == kind)
      bytes += record.operation.sizes.numel() * static_cast<std::int64_t>(element_size(record.operation.dtype));
  return bytes;
}

// A step gathers all parameters twice, but for those outside of the blocks and the last block, and reduces once; as
// bfloat16 they are half the bytes.
TEST(ShardingMemory, AStepSendsWhatTheorySays) {
  for (const auto& [ranks, travels_as] : {std::pair{2, kFloat32}, {4, kFloat32}, {2, kBFloat16}})
    run_on({ranks, Link::in_process}, [&, world = ranks, dtype = travels_as](const ProcessGroupPtr& group) {
      Tower tower(64, 12);
      const std::int64_t all = tower.num_bytes(), block = tower.blocks[0].num_bytes();
      const std::int64_t outside = all - 12 * block;
      TrainingStep step(tower, {.group = group, .zero = 3, .gather_dtype = dtype});
      const auto optimizer = make_adamw(step);
      ProcessGroup& gathers = ParameterShards::of(tower)->group();
      step(make_batch(8), tower_loss);
      const std::int64_t before = bytes_of(gathers, OperationKind::all_gather);
      const std::int64_t reduced = bytes_of(*group, OperationKind::reduce_scatter);
      step(make_batch(8), tower_loss);
      // all_gather is recorded with its input, one rank's block.
      const auto gathered = static_cast<double>(bytes_of(gathers, OperationKind::all_gather) - before) * world;
      const auto expected = static_cast<double>(2 * all - outside - block) * (dtype == kBFloat16 ? 0.5 : 1.0);
      EXPECT_NEAR(gathered, expected, 0.01 * expected);
      EXPECT_NEAR(static_cast<double>(bytes_of(*group, OperationKind::reduce_scatter) - reduced),
                  static_cast<double>(all), 0.01 * static_cast<double>(all));
    });
}

/// Counts what all ranks send.
class CountedTransport final : public Transport {
 public:
  CountedTransport(std::unique_ptr<Transport> inner, std::atomic<std::int64_t>& bytes)
      : inner_(std::move(inner)), bytes_(bytes) {}
  std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    bytes_ += static_cast<std::int64_t>(bytes);
    return inner_->send(peer, tag, data, bytes);
  }
  std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return inner_->recv(peer, tag, data, bytes);
  }
  void abort() override { inner_->abort(); }

 private:
  std::unique_ptr<Transport> inner_;
  std::atomic<std::int64_t>& bytes_;
};

/// What all ranks together send in a step and its update, as a multiple of the parameters' bytes.
double sent_in_a_step(int world, int zero, std::int64_t shards, bool staged, double model_bytes) {
  const auto store = std::make_shared<HashStore>();
  const auto boxes = std::make_shared<lockstep::testing::Mailboxes>();
  std::atomic<std::int64_t> bytes = 0;
  double sent = 0.0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      const ProcessGroupPtr group =
          make_transport_group("in_process", {.rank = rank, .world_size = world, .timeout = Milliseconds(30'000)},
                               std::make_unique<CountedTransport>(
                                   std::make_unique<lockstep::testing::InProcessTransport>(boxes, rank), bytes),
                               store);
      Tower tower(64, 12);
      std::optional<PipelineParallel> one_stage;
      if (staged) one_stage.emplace(tower, std::vector<PipelineLayer>{{"tower", {&tower}}}, PipelineParallelOptions{});
      TrainingStep step(tower, {.group = group,
                                .logical_shards = shards,
                                .model_part = staged ? one_stage->part() : nullptr,
                                .zero = zero >= 2 ? zero : 0});
      const auto optimizer = zero > 0 ? make_adamw(step) : std::make_unique<optim::AdamW>(tower.parameters());
      std::int64_t before = 0;
      for (int i = 0; i < 2; ++i) {  // the first step learns in what order to gather
        group->barrier()->wait();
        if (rank == 0) before = bytes;
        group->barrier()->wait();
        step(make_batch(8), tower_loss);
        optimizer->step();
        group->barrier()->wait();
        if (rank == 0) sent = static_cast<double>(bytes - before) / model_bytes;
        group->barrier()->wait();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return sent;
}

// An all-reduce of n bytes sends 2 (W - 1) / W n from each rank, a gather or a reduction to parts half of that.
TEST(ShardingMemory, EachKindSendsWhatTheorySays) {
  Tower tower(64, 12);
  const double all = static_cast<double>(tower.num_bytes()), block = static_cast<double>(tower.blocks[0].num_bytes());
  struct Case {
    const char* kind;
    int zero;
    bool lockstep, staged;
    double expected;  // for each rank but one
  };
  // ZeRO-3 does not gather the last block again for backward, nor what lies outside of blocks.
  const double again = 11.0 * block / all;
  for (const Case& each :
       {Case{"DDP", 0, false, false, 2.0}, Case{"ZeRO-1", 1, false, false, 3.0}, Case{"ZeRO-2", 2, false, false, 2.0},
        Case{"ZeRO-3", 3, false, false, 2.0 + again}, Case{"ZeRO-3 of a pipeline's stage", 3, false, true, 2.0},
        Case{"DDP, lockstep", 0, true, false, 2.0}, Case{"ZeRO-1, lockstep", 1, true, false, 3.0},
        Case{"ZeRO-2, lockstep", 2, true, false, 2.0}, Case{"ZeRO-3, lockstep", 3, true, false, 2.0 + again}})
    for (const int world : {2, 4}) {
      const double sent = sent_in_a_step(world, each.zero, each.lockstep ? world : 0, each.staged, all);
      const double expected = each.expected * (world - 1);
      EXPECT_NEAR(sent, expected, 0.02 * expected) << each.kind << " on " << world;
      std::printf("| %s | %d | %.3f | %.3f |\n", each.kind, world, sent, expected);
    }
}

// --- checkpoints
// -----------------------------------------------------------------------------------------------------------

constexpr std::int64_t kShards = 8;

void train(TrainingStep& step, optim::Optimizer& optimizer, std::uint32_t begin, std::uint32_t end) {
  for (std::uint32_t s = begin; s < end; ++s) {
    const RandomKeyGuard key(s, 0);
    step(make_batch(13, s + 1), tower_loss);
    optimizer.clip_grad_norm_(0.5);
    optimizer.step();
  }
}

// Saved by any number of ranks, divided or not, and loaded by any.
TEST(ShardingCheckpoint, IsThatOfOneProcessAndLoadsAnywhere) {
  struct Way {
    int zero, world;
  };
  const std::vector<Way> ways{{0, 1}, {0, 2}, {2, 3}, {3, 2}, {3, 4}};
  std::string file, end;
  for (const Way& saver : ways) {
    const TemporaryPath path;
    run_on({saver.world, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Tower tower;
      set_tower(tower);
      TrainingStep step(tower, {.group = group, .logical_shards = kShards, .zero = saver.zero});
      const auto optimizer = make_adamw(step);
      train(step, *optimizer, 0, 3);
      save_checkpoint(path.text(), tower, *optimizer, {.step = 3}, *group);
    });
    std::ifstream in(path.text(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    if (file.empty()) file = bytes;
    EXPECT_TRUE(bytes == file) << "ZeRO-" << saver.zero << " on " << saver.world << " ranks";
    for (const Way& loader : ways) {
      if (loader.zero == saver.zero && saver.zero != 3) continue;
      run_on({loader.world, Link::in_process}, [&](const ProcessGroupPtr& group) {
        Tower tower;
        TrainingStep step(tower, {.group = group, .logical_shards = kShards, .zero = loader.zero});
        const auto optimizer = make_adamw(step);
        EXPECT_EQ(load_checkpoint(path.text(), tower, *optimizer, *group).step, 3);
        train(step, *optimizer, 3, 5);
        const WholeParameters whole = step.whole_parameters();
        const std::string reached = nn::weights_sha256(tower);
        if (group->rank() > 0) return;
        if (end.empty()) end = reached;
        EXPECT_EQ(reached, end) << "ZeRO-" << loader.zero << " on " << loader.world << " ranks";
      });
    }
  }
}

// An optimizer may have parameters that are frozen, of which the ranks keep no state: the file has what one process
// writes of them.
TEST(ShardingCheckpoint, HasFrozenParametersOfTheOptimizerToo) {
  std::string files[2];
  for (const int zero : {0, 1, 2, 3})
    for (const bool by_shares : {true, false}) {
      const TemporaryPath path;
      run_on({zero == 0 ? 1 : 3, Link::in_process}, [&](const ProcessGroupPtr& group) {
        const auto begin = [&](Tower& tower) {
          set_tower(tower);
          tower.blocks[1].set_requires_grad(false);
          return TrainingStep(tower, {.group = group, .logical_shards = kShards, .zero = zero >= 2 ? zero : 0});
        };
        const auto make = [&](TrainingStep& step) -> std::unique_ptr<optim::Optimizer> {
          auto adamw = std::make_unique<optim::AdamW>(step.module().parameters(), optim::AdamWOptions{.lr = 0.01});
          if (zero == 0) return adamw;
          if (zero == 1) return std::make_unique<ZeroRedundancyOptimizer>(std::move(adamw), group);
          return std::make_unique<ZeroRedundancyOptimizer>(std::move(adamw), step);
        };
        Tower tower, other;
        TrainingStep step = begin(tower);
        const auto optimizer = make(step);
        train(step, *optimizer, 0, 2);
        nn::TrainingState state{.step = 2};
        if (!by_shares) state.tensors.push_back({"mine", full({2}, 1.0)});
        save_checkpoint(path.text(), tower, *optimizer, state, *group);
        TrainingStep other_step = begin(other);
        const auto other_optimizer = make(other_step);
        EXPECT_EQ(load_checkpoint(path.text(), other, *other_optimizer, *group).step, 2) << "ZeRO-" << zero;
      });
      std::ifstream in(path.text(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      if (zero == 0) files[by_shares] = bytes;
      EXPECT_TRUE(bytes == files[by_shares]) << "ZeRO-" << zero;
    }
}

// The ranks write one file together: nobody needs memory for the whole, and all throw what one of them meets.
TEST(ShardingCheckpoint, IsWrittenByShares) {
  for (const int zero : {2, 3}) {
    const TemporaryPath path;
    std::size_t before = 0;
    double needed = 0.0;
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Tower tower(128, 6);
      set_tower(tower);
      const std::int64_t bytes = tower.num_bytes();
      TrainingStep step(tower, {.group = group, .logical_shards = kShards, .zero = zero});
      const auto optimizer = make_adamw(step);
      train(step, *optimizer, 0, 1);
      group->barrier()->wait();
      if (group->rank() == 0) {
        before = stats().in_use;
        allocator(DeviceType::cpu).reset_peak(Device());
      }
      group->barrier()->wait();
      EXPECT_TRUE(save_checkpoint_by_shares(path.text(), tower, {*optimizer}, {.step = 1}, *group, {}));
      if (group->rank() == 0) needed = static_cast<double>(stats().peak - before) / static_cast<double>(bytes);
      const std::string failure =
          error_of([&] { save_checkpoint(path.text() + ".d/file", tower, *optimizer, {.step = 1}, *group); });
      EXPECT_NE(failure.find("No such file or directory"), std::string::npos) << failure;
      const std::string earlier =
          error_of([&] { save_checkpoint(path.text(), tower, *optimizer, {.step = 0}, *group); });
      EXPECT_NE(earlier.find("holds step 1"), std::string::npos) << earlier;
    });
    std::printf("memory of three ranks to save ZeRO-%d by shares: %.3f of the parameters\n", zero, needed);
    EXPECT_LE(needed, 0.25);  // whole, the state of one rank of ZeRO-2 alone is 2
    nn::SafetensorsFile(path.text()).verify();
  }
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    optim::AdamW whole(tower.parameters());
    EXPECT_FALSE(save_checkpoint_by_shares("nowhere", tower, {whole}, {}, *group, {}));
  });
}

TEST(ShardingCheckpoint, EvaluationHasTheSameSums) {
  const auto samples = make_batch(23, 5);
  const auto set = std::make_shared<data::TensorDataset>(samples.x, samples.y);
  const auto sums = [&](const ProcessGroupPtr& group, int zero) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .zero = zero});
    return evaluate(
        tower, set, 1,
        [&](const data::Batch& batch) { return std::vector<double>{tower_loss(tower, batch).item<double>()}; },
        {.batch_size = 4, .group = group->world_size() > 1 ? group.get() : nullptr});  // as TrainingStep::group()
  };
  const std::vector<double> expected = sums(make_single_process_group(), 0);
  for (const int world : {1, 3})
    run_on({world, Link::in_process}, [&](const ProcessGroupPtr& group) { EXPECT_EQ(sums(group, 3), expected); });
}

// One rank's gradients overflow: no rank makes the step.
TEST(ShardingScaler, AllRanksLeaveOutAStep) {
  for (const int zero : {2, 3})
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Tower tower;
      set_tower(tower);
      TrainingStep step(tower, {.group = group, .zero = zero});
      const auto optimizer = make_adamw(step);
      optim::GradScaler scaler({.init_scale = 1024.0});
      const auto train = [&](double factor) {
        step(make_batch(9), [&](nn::Module& module, const data::Batch& part) -> LossValue {
          // The gradient of one parameter alone, which one rank keeps, overflows.
          return scaler.scale(tower_loss(module, part)) + tower.scale * factor;
        });
        scaler.unscale(*optimizer);
        EXPECT_EQ(std::isfinite(static_cast<double>(optimizer->clip_grad_norm_(1.0))), factor == 0.0);
        const bool made = scaler.step(*optimizer);
        scaler.update();
        return made;
      };
      EXPECT_TRUE(train(0.0));
      EXPECT_FALSE(train(HUGE_VAL));
      EXPECT_EQ(scaler.scale_factor(), 512.0);
      EXPECT_TRUE(train(0.0));
    });
}

}  // namespace
}  // namespace lockstep::distributed
