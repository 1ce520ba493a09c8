// Divided parameters that are gathered within groups of neighbouring ranks, such as those of one machine.

#include <atomic>
#include <thread>

#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"
#include "lockstep/nn/container.h"
#include "tests/distributed/parallel/sharding_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

TEST(GatherWithin, LockstepHasOneHash) {
  for (const DType gather : {kFloat32, kBFloat16}) {
    ShardedRun run{.zero = 3, .batches = {13, 3, 16, 1}, .gather = gather};
    const std::string expected = trained_hash(run, make_single_process_group());
    for (const auto& [world, within] : {std::pair{4, 2}, {4, 1}, {6, 3}, {6, 2}, {2, 2}}) {
      run.within = within;
      run_on({world, Link::in_process}, [&, world = world](const ProcessGroupPtr& group) {
        EXPECT_EQ(trained_hash(run, group), expected) << run.within << " of " << world << " ranks";
      });
    }
  }
}

/// Counts what goes from one machine to another, if a machine has `near` ranks.
class Cable final : public Transport {
 public:
  Cable(std::unique_ptr<Transport> inner, int rank, int near, std::atomic<std::int64_t>& bytes)
      : inner_(std::move(inner)), rank_(rank), near_(near), bytes_(bytes) {}
  std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    if (peer / near_ != rank_ / near_) bytes_ += static_cast<std::int64_t>(bytes);
    return inner_->send(peer, tag, data, bytes);
  }
  std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return inner_->recv(peer, tag, data, bytes);
  }
  void abort() override { inner_->abort(); }

 private:
  std::unique_ptr<Transport> inner_;
  const int rank_, near_;
  std::atomic<std::int64_t>& bytes_;
};

/// What travels between two machines of two ranks in a step and its update, as a multiple of the parameters' bytes.
double between_machines(int within) {
  const auto store = std::make_shared<HashStore>();
  const auto boxes = std::make_shared<lockstep::testing::Mailboxes>();
  std::atomic<std::int64_t> bytes = 0;
  double sent = 0.0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      const ProcessGroupPtr group = make_transport_group(
          "in_process", {.rank = rank, .world_size = 4, .timeout = Milliseconds(30'000)},
          std::make_unique<Cable>(std::make_unique<lockstep::testing::InProcessTransport>(boxes, rank), rank, 2, bytes),
          store);
      Tower tower(64, 12);
      TrainingStep step(tower, {.group = group, .zero = 3, .gather_within = within});
      const auto optimizer = make_adamw(step);
      std::int64_t before = 0;
      for (int i = 0; i < 3; ++i) {
        group->barrier()->wait();
        if (rank == 0) before = bytes;
        group->barrier()->wait();
        step(make_batch(8), tower_loss);
        optimizer->step();
        group->barrier()->wait();
        if (rank == 0) sent = static_cast<double>(bytes - before) / static_cast<double>(tower.num_bytes());
        group->barrier()->wait();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return sent;
}

// Each block of gradients goes to the two ranks of the other machine, and each new block of values to one of them. If
// all ranks gather, values cross for each pass, but for the last block, which backward does not gather again.
TEST(GatherWithin, LittleTravelsBetweenMachines) {
  const Tower tower(64, 12);
  const double last = static_cast<double>(tower.blocks[11].num_bytes()) / static_cast<double>(tower.num_bytes());
  const double near = between_machines(2), all = between_machines(0);
  std::printf("between two machines of two ranks, in parameters: %.3f, without gather_within %.3f\n", near, all);
  EXPECT_NEAR(near, 2.0 + 1.0, 0.03);
  EXPECT_NEAR(all, 2.0 + 2.0 * (2.0 - last), 0.06);
}

// What reads parameters outside of a step sees their present values, and so does a step what was written to them.
TEST(GatherWithin, ValuesAreThePresentOnes) {
  const lockstep::testing::TemporaryPath path;
  const auto train = [&](const ProcessGroupPtr& group, int zero, int within) {
    Tower tower;
    set_tower(tower);
    for (Block& block : tower.blocks) block.drop.eval();
    DistributedDataParallel ddp(tower, group, {.zero = zero, .gather_within = within});
    std::unique_ptr<optim::Optimizer> optimizer =
        std::make_unique<optim::AdamW>(tower.parameters(), optim::AdamWOptions{.lr = 0.01});
    if (zero > 0) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), ddp.training_step());
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (i == 1) {
        const WholeParameters whole = ddp.training_step().whole_parameters();
        copy_values(full({kClasses}, 0.7), tower.shift.detach());
      }
      if (i == 2) save_checkpoint(path.text() + std::to_string(within), tower, *optimizer, {.step = 2}, *group);
      if (i == 3) load_checkpoint(path.text() + std::to_string(within), tower, *optimizer, *group);
      optimizer->zero_grad();
      cross_entropy(ddp(make_batch(6, 3 * i + static_cast<std::uint32_t>(group->rank())).x),
                    make_batch(6, 3 * i + static_cast<std::uint32_t>(group->rank())).y)
          .backward();
      optimizer->step();
    }
    const WholeParameters whole = ddp.training_step().whole_parameters();
    return weights_of(tower);
  };
  run_on({4, Link::in_process}, [&](const ProcessGroupPtr& group) {
    const Values expected = train(group, 0, 0);
    EXPECT_LE(largest_difference(train(group, 3, 2), expected), 1e-6);
    EXPECT_LE(largest_difference(train(group, 3, 1), expected), 1e-6);
  });
  for (const char* each : {"0", "1", "2"}) std::remove((path.text() + each).c_str());
}

// Also where a forward that was recorded lets the user read, and the optimizer's step came after it.
TEST(GatherWithin, AnUpdateIsSeenAfterAForward) {
  run_on({4, Link::in_process}, [](const ProcessGroupPtr& group) {
    Tower tower;
    for (Block& block : tower.blocks) block.drop.eval();
    DistributedDataParallel ddp(tower, group, {.zero = 3, .gather_within = 2});
    const auto optimizer = make_adamw(ddp.training_step());
    const data::Batch batch = make_batch(6, 3);
    cross_entropy(ddp(batch.x), batch.y).backward();
    const Tensor recorded = ddp(batch.x);
    optimizer->step();
    const auto read = tower.shift.detach().to_vector<double>();
    const WholeParameters whole = ddp.training_step().whole_parameters();
    EXPECT_EQ(read, tower.shift.to_vector<double>());
  });
}

// A stage gathers what it has once a step.
TEST(GatherWithin, AStageGathersAmongNeighbours) {
  const auto train = [](const ProcessGroupPtr& group, const MeshSizes& sizes, int zero, int within) {
    const Mesh mesh(group, sizes);
    nn::Sequential model;
    model.add<nn::Linear>(kFeatures, 5);
    model.add<nn::ReLU>();
    model.add<nn::Linear>(5, kClasses);
    set_weights(model);
    const PipelineParallel pipeline(model, pipeline_layers(model), {.group = mesh.pipeline()});
    TrainingStep step(model, {.group = mesh.data(),
                              .logical_shards = 4,
                              .model_part = pipeline.part(),
                              .zero = zero,
                              .gather_within = within});
    std::unique_ptr<optim::Optimizer> optimizer =
        std::make_unique<optim::SGD>(pipeline.parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    if (zero > 0) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
    for (std::uint32_t i = 0; i < 3; ++i) {
      step(make_batch(9, i), mean_loss);
      optimizer->step();
    }
    const WholeParameters whole = step.whole_parameters();
    Values values;
    for (const nn::NamedTensor& each : pipeline.full_state()) values.push_back(each.tensor.to_vector<double>());
    return values;
  };
  const Values one = train(make_single_process_group(), {}, 0, 0);
  run_on({8, Link::in_process}, [&](const ProcessGroupPtr& group) {
    EXPECT_EQ(largest_difference(train(group, {.data = 4, .pipeline = 2}, 3, 2), one), 0.0);
  });
}

}  // namespace
}  // namespace lockstep::distributed
