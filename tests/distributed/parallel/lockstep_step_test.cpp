// Lockstep mode: the same bits from one module, several devices and any number of ranks.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/collectives/tree_sum.h"
#include "lockstep/distributed/parallel/data_parallel.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/reduction/reducer_trace.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/nn.h"
#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::Link;
using testing::run_ranks;

constexpr std::int64_t kShards = 8;

struct Net : nn::Module {
  nn::Linear fc1{this, "fc1", 12, 33};
  nn::BatchNorm1d bn{this, "bn", 33};
  nn::Dropout dropout{this, "dropout", 0.3};
  nn::Linear fc2{this, "fc2", 33, 5};
  Tensor forward(Tensor x) override { return fc2(dropout(relu(bn(fc1(x))))); }
};

data::Batch batch_of(std::int64_t step, std::int64_t size) {
  const RandomKeyGuard key(1000 + static_cast<std::uint64_t>(step), 0);
  return {randn({size, 12}), randint(0, 5, {size}), 0};
}

LossValue mean_loss(nn::Module& net, const data::Batch& part) {
  return cross_entropy(net.forward(part.x), part.y);
}

/// What a training leaves: every loss and every bit of the state.
struct Trace {
  std::vector<double> losses;
  std::string state;
  friend bool operator==(const Trace&, const Trace&) = default;
};

constexpr std::int64_t kSizes[] = {64, 64, 61, 24, 3, 64};  // batches that do not divide, and short ones

template <typename Step>
Trace train(nn::Module& module, Step&& step) {
  Trace trace;
  optim::SGD optimizer(module.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (std::int64_t i = 0; i < std::ssize(kSizes); ++i) {
    if (kSizes[i] < 2 * kShards) module.eval();  // a shard of one sample has no variance
    trace.losses.push_back(step(batch_of(i, kSizes[i])).template item<double>());
    module.train();
    optim::clip_grad_norm_(module.parameters(), 1.0);
    optimizer.step();
  }
  for (const nn::NamedTensor& each : module.state()) {
    const Tensor value = as_contiguous(each.tensor.detach());
    trace.state.append(static_cast<const char*>(value.raw_data()), value.nbytes());
  }
  return trace;
}

std::unique_ptr<nn::Module> make_net() {
  return std::make_unique<Net>();
}

Trace alone(const LossFunction& loss = mean_loss) {
  manual_seed(3);
  TrainingStep step(make_net, {.logical_shards = kShards});
  return train(step.module(), [&](const data::Batch& batch) { return step(batch, loss); });
}

Trace on_devices(int count, const LossFunction& loss = mean_loss) {
  manual_seed(3);
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.emplace_back(kCPU, i);
  DataParallel step(make_net, devices, {.logical_shards = kShards});
  return train(step.module(), [&](const data::Batch& batch) { return step.step(batch, loss); });
}

/// By rank.
std::vector<Trace> on_ranks(int world, const LossFunction& loss = mean_loss, Link link = Link::in_process) {
  manual_seed(3);  // of all ranks, which are threads here
  std::vector<std::unique_ptr<nn::Module>> nets;
  for (int r = 0; r < world; ++r) {
    manual_seed(3);
    nets.push_back(make_net());
  }
  std::vector<Trace> traces(static_cast<std::size_t>(world));
  run_ranks(world, link, [&](ProcessGroup& group) {
    const auto r = static_cast<std::size_t>(group.rank());
    const ProcessGroupPtr shared(&group, [](ProcessGroup*) {});
    DistributedDataParallel ddp(*nets[r], shared, {.logical_shards = kShards, .first_bucket_bytes = 256});
    traces[r] = train(*nets[r], [&](const data::Batch& batch) {
      return ddp.step(batch, [&](const data::Batch& part) { return loss(*nets[r], part); });
    });
  });
  return traces;
}

TEST(LockstepStep, HasTheSameBitsOnDevicesAndRanks) {
  const Trace expected = alone();
  for (const int devices : {1, 2, 3, 4, 8}) EXPECT_EQ(on_devices(devices), expected) << devices << " devices";
  for (const int world : {1, 2, 3, 4, 5, 8})
    for (const Trace& trace : on_ranks(world)) EXPECT_EQ(trace, expected) << world << " ranks";
  EXPECT_EQ(on_ranks(3, mean_loss, Link::gloo)[2], expected);
}

TEST(LockstepStep, DoesNotDependOnThreads) {
  const int before = num_threads();
  set_num_threads(1);
  const Trace expected = alone();
  set_num_threads(3);
  EXPECT_EQ(alone(), expected);
  EXPECT_EQ(on_ranks(2)[1], expected);
  set_num_threads(before);
}

// The overflow is in the samples of one worker alone; all leave the same steps out.
TEST(LockstepStep, TheGradScalerDecidesAlike) {
  const auto on_ranks_scaled = [](int world) {
    std::vector<std::string> states(static_cast<std::size_t>(world));
    std::vector<std::unique_ptr<nn::Module>> nets;
    for (int r = 0; r < world; ++r) {
      manual_seed(3);
      nets.push_back(make_net());
    }
    run_ranks(world, Link::in_process, [&](ProcessGroup& group) {
      nn::Module& net = *nets[static_cast<std::size_t>(group.rank())];
      const ProcessGroupPtr shared(&group, [](ProcessGroup*) {});
      DistributedDataParallel ddp(net, shared, {.logical_shards = kShards});
      optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
      optim::GradScaler scaler({.init_scale = 64, .growth_interval = 2});
      std::string steps;
      for (std::int64_t i = 0; i < 6; ++i) {
        data::Batch batch = batch_of(i, 64);
        if (i == 1 || i == 4) batch.x.slice(0, 63, 64).fill_(std::numeric_limits<double>::infinity());
        ddp.step(batch, [&](const data::Batch& part) {
          return scaler.scale((net.forward(part.x) * net.forward(part.x)).mean());
        });
        steps += scaler.step(optimizer) ? '+' : '-';
        scaler.update();
      }
      std::string& state = states[static_cast<std::size_t>(group.rank())];
      state = steps + " " + std::to_string(scaler.scale_factor()) + " ";
      for (const Tensor& parameter : net.parameters()) {
        const Tensor value = as_contiguous(parameter.detach());
        state.append(static_cast<const char*>(value.raw_data()), value.nbytes());
      }
    });
    return states;
  };
  const std::string expected = on_ranks_scaled(1).front();
  EXPECT_EQ(expected.substr(0, 7), "+-++-+ ");
  for (const int world : {2, 3, 8})
    for (const std::string& state : on_ranks_scaled(world)) EXPECT_EQ(state, expected) << world << " ranks";
}

TEST(LockstepStep, ALossMayBeASumWithItsCount) {
  // Class 4 does not count, so that shards differ in what they count.
  const LossFunction loss = [](nn::Module& net, const data::Batch& part) {
    const Tensor losses = cross_entropy(net.forward(part.x), part.y, {.reduction = Reduction::sum, .ignore_index = 4});
    return LossValue::sum(losses, ne(part.y, 4).sum().item<double>());
  };
  const Trace expected = alone(loss);
  EXPECT_EQ(on_devices(3, loss), expected);
  for (const int world : {2, 4, 5}) EXPECT_EQ(on_ranks(world, loss)[0], expected) << world << " ranks";
}

TEST(LockstepStep, GradientsAreThoseOfThePlainStep) {
  // Without what works on parts: batch statistics and dropout.
  struct Plain : nn::Module {
    nn::Linear fc1{this, "fc1", 12, 9};
    nn::Linear fc2{this, "fc2", 9, 5};
    Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
  };
  const auto make = [] { return std::make_unique<Plain>(); };
  manual_seed(5);
  TrainingStep plain(make, {});
  manual_seed(5);
  TrainingStep lockstep(make, {.logical_shards = kShards});
  const data::Batch batch = batch_of(0, 61);
  EXPECT_NEAR(plain(batch, mean_loss).item<double>(), lockstep(batch, mean_loss).item<double>(), 1e-6);
  const auto a = plain.module().parameters();
  const auto b = lockstep.module().parameters();
  for (std::size_t p = 0; p < a.size(); ++p) testing::expect_close(b[p].grad(), a[p].grad(), 1e-5, 1e-6);
}

TEST(LockstepStep, RunningStatisticsAreUpdatedOnce) {
  manual_seed(3);
  TrainingStep step(make_net, {.logical_shards = 4});
  auto& net = static_cast<Net&>(step.module());
  step(batch_of(0, 64), mean_loss);
  EXPECT_EQ(net.bn.num_batches_tracked.item<std::int64_t>(), 1);
  // The mean over equal shards is the mean over the batch.
  const Tensor x = batch_of(0, 64).x;
  const NoGradGuard no_grad;
  const Tensor mean = net.fc1(x).mean({0});
  testing::expect_close(net.bn.running_mean.detach(), mul(mean, 0.1), 1e-4, 1e-5);
}

TEST(LockstepStep, KeysDrawnByRankWouldShow) {
  // The guard that the test above relies on: dropout keyed by who computes gives other bits on other numbers of ranks.
  const auto by_rank = [](int world) {
    manual_seed(3);
    auto nets = std::vector<std::unique_ptr<nn::Module>>();
    for (int r = 0; r < world; ++r) {
      manual_seed(3);
      nets.push_back(make_net());
    }
    std::vector<Trace> traces(static_cast<std::size_t>(world));
    run_ranks(world, Link::in_process, [&](ProcessGroup& group) {
      const auto r = static_cast<std::size_t>(group.rank());
      DistributedDataParallel ddp(*nets[r], ProcessGroupPtr(&group, [](ProcessGroup*) {}), {.logical_shards = kShards});
      traces[r] = train(*nets[r], [&](const data::Batch& batch) {
        return ddp.step(batch, [&](const data::Batch& part) {
          const RandomKeyGuard key(0, static_cast<std::uint32_t>(group.rank()));
          return mean_loss(*nets[r], part);
        });
      });
    });
    return traces[0];
  };
  EXPECT_NE(by_rank(4), by_rank(2));
}

/// Adds in rank order where the tree was asked for, as every backend's own all-reduce would.
class RankOrderExecutor final : public TransportExecutor {
 public:
  using TransportExecutor::TransportExecutor;

  WorkPtr launch(Operation operation, std::uint64_t record) override {
    if (operation.kind != OperationKind::all_reduce_tree) return TransportExecutor::launch(operation, record);
    const Tensor divisor = operation.divisor;
    const Tensor sum = operation.input;  // one unit, as the number of ranks is a power of two
    const Tensor output = operation.output;
    operation.kind = OperationKind::all_reduce;
    operation.output = sum;
    const WorkPtr work = TransportExecutor::launch(std::move(operation), record);
    work->wait();
    const void* part = sum.raw_data();
    const TreeNode root;
    tree_sum(sum.dtype(), output.raw_data(), {&part, 1}, {&root, 1}, output.numel(),
             divisor.defined() ? divisor.item<double>() : 1.0);
    return work;
  }
};

TEST(LockstepStep, SumsInRankOrderWouldShow) {
  const auto with_rank_order = [](int world) {
    manual_seed(3);
    std::vector<std::unique_ptr<nn::Module>> nets;
    for (int r = 0; r < world; ++r) {
      manual_seed(3);
      nets.push_back(make_net());
    }
    auto boxes = std::make_shared<testing::Mailboxes>();
    auto store = std::make_shared<HashStore>();
    std::vector<Trace> traces(static_cast<std::size_t>(world));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank)
      threads.emplace_back([&, rank] {
        const auto r = static_cast<std::size_t>(rank);
        const auto group =
            std::make_shared<ProcessGroup>(ProcessGroupOptions{.rank = rank, .world_size = world}, store);
        group->add(kCPU, std::make_unique<RankOrderExecutor>(
                             *group, "rank order", std::make_unique<testing::InProcessTransport>(boxes, rank)));
        DistributedDataParallel ddp(*nets[r], group, {.logical_shards = kShards});
        traces[r] = train(*nets[r], [&](const data::Batch& batch) {
          return ddp.step(batch, [&](const data::Batch& part) { return mean_loss(*nets[r], part); });
        });
      });
    for (std::thread& thread : threads) thread.join();
    return traces[0];
  };
  const Trace expected = alone();
  EXPECT_EQ(with_rank_order(2), expected);  // any sum of two is the same
  EXPECT_NE(with_rank_order(4), expected);
}

TEST(LockstepStep, CommunicationStartsBeforeBackwardEnds) {
  manual_seed(3);
  std::vector<std::unique_ptr<nn::Module>> nets;
  for (int r = 0; r < 2; ++r) nets.push_back(make_net());
  run_ranks(2, Link::in_process, [&](ProcessGroup& group) {
    nn::Module& net = *nets[static_cast<std::size_t>(group.rank())];
    DistributedDataParallel ddp(net, ProcessGroupPtr(&group, [](ProcessGroup*) {}),
                                {.logical_shards = kShards, .first_bucket_bytes = 64, .bucket_bytes = 64});
    ddp.step(batch_of(0, 64), [&](const data::Batch& part) { return mean_loss(net, part); });
    const ReducerTrace& trace = ddp.trace();
    ASSERT_GT(trace.launched_ns.size(), 1u);
    EXPECT_LT(trace.launched_ns.front(), trace.last_gradient_ns);
  });
}

struct Counting : nn::Module {
  nn::Linear fc{this, "fc", 12, 5};
  nn::Buffer calls{this, "calls", zeros({1})};
  Tensor forward(Tensor x) override {
    fill_values(calls, calls.item<double>() + 1.0);
    calls.storage()->bump_version();
    return fc(x);
  }
};

TEST(LockstepStep, RefusesWhatWouldBreakThePromise) {
  manual_seed(3);
  TrainingStep counting([] { return std::make_unique<Counting>(); }, {.logical_shards = 4});
  EXPECT_NE(error_of([&] { counting(batch_of(0, 16), mean_loss); }).find("forward() changed the buffer 'calls'"),
            std::string::npos);
  EXPECT_NE(error_of([] { TrainingStep(make_net, {.logical_shards = 12}); }).find("is 12; expected a power of two"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              TrainingStep(make_net, {.devices = {Device(kCPU, 0), Device(kCPU, 1)}, .logical_shards = 1});
            }).find("2 workers cannot share 1 logical shards"),
            std::string::npos);
  TrainingStep step(make_net, {.logical_shards = 4});
  EXPECT_NE(error_of([&] {
              step({zeros({0, 12}), zeros({0}, {.dtype = kInt64}), 0}, mean_loss);
            }).find("no samples"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              step(batch_of(0, 16), [](nn::Module& net, const data::Batch& part) {
                return LossValue::sum(net.forward(part.x).sum(), 0.0);
              });
            }).find("count 0"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              step(batch_of(0, 16), [](nn::Module& net, const data::Batch& part) { return net.forward(part.x); });
            }).find("must return one element"),
            std::string::npos);

  Net net;
  DistributedDataParallel ddp(net, make_single_process_group(), {.logical_shards = 4});
  EXPECT_NE(error_of([&] { ddp(batch_of(0, 16).x); }).find("can only be recorded by step()"), std::string::npos);
  EXPECT_NE(error_of([&] { auto guard = ddp.no_sync(); }).find("not for lockstep mode"), std::string::npos);
}

// Their formulas add over whole parameters, the same ones on every rank.
TEST(LockstepStep, OptimizersOfWholeParametersHaveTheSameBits) {
  const auto weights = [](TrainingStep step) {
    std::vector<Tensor> matrices, others;
    for (const Tensor& p : step.module().parameters()) (p.dim() == 2 ? matrices : others).push_back(p);
    optim::Muon muon(matrices, {.lr = 0.02});
    optim::Adafactor adafactor(others, {.lr = 0.1});
    for (std::int64_t i = 0; i < 3; ++i) {
      step(batch_of(i, 61), mean_loss);
      muon.step();
      adafactor.step();
    }
    return nn::weights_sha256(step.module());
  };
  manual_seed(3);
  const std::string one = weights(TrainingStep(make_net, {.logical_shards = kShards}));
  for (const int world : {2, 3})
    run_ranks(world, Link::in_process, [&](ProcessGroup& group) {
      const ProcessGroupPtr ranks(&group, [](ProcessGroup*) {});
      EXPECT_EQ(weights(TrainingStep(make_net, {.group = ranks, .logical_shards = kShards})), one);
    });
}

TEST(LockstepStep, APartOfTheWrongSizeIsAnError) {
  manual_seed(3);
  std::vector<std::unique_ptr<nn::Module>> nets;
  for (int r = 0; r < 3; ++r) nets.push_back(make_net());
  run_ranks(3, Link::in_process, [&](ProcessGroup& group) {
    nn::Module& net = *nets[static_cast<std::size_t>(group.rank())];
    DistributedDataParallel ddp(net, ProcessGroupPtr(&group, [](ProcessGroup*) {}), {.logical_shards = kShards});
    data::Batch part = batch_of(0, 21);  // a third; the shards hold 24, 24 and 16
    part.global_size = 64;
    EXPECT_NE(error_of([&] {
                ddp.step(part, [&](const data::Batch& b) { return mean_loss(net, b); });
              }).find("give the loader the number of logical shards"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace lockstep::distributed
