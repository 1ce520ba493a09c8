// Ranks that run out of samples at different times, against one process that sees in each step what all of them had.

#include "lockstep/distributed/parallel/workers/uneven_inputs.h"

#include <cstdlib>

#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr double kBound = 1e-5;  // of weights up to 0.6, after up to 7 steps in float32

/// How many samples each rank has in each of its steps. The samples of a step are numbered through the ranks.
struct Feed {
  std::vector<std::vector<std::int64_t>> sizes;  // by rank
  data::Batch pool = make_batch(200);

  std::int64_t steps() const {
    std::size_t most = 0;
    for (const auto& rank : sizes) most = std::max(most, rank.size());
    return static_cast<std::int64_t>(most);
  }
  std::int64_t size(std::size_t rank, std::int64_t step) const {
    return static_cast<std::size_t>(step) < sizes[rank].size() ? sizes[rank][static_cast<std::size_t>(step)] : 0;
  }
  std::int64_t begin_of(std::int64_t step, std::size_t rank) const {
    std::int64_t begin = 0;
    for (std::int64_t s = 0; s <= step; ++s)
      for (std::size_t r = 0; r < (s < step ? sizes.size() : rank); ++r) begin += size(r, s);
    return begin;
  }
  data::Batch own(std::size_t rank, std::int64_t step) const {
    const std::int64_t n = size(rank, step);
    const std::int64_t begin = begin_of(step, rank);
    return {rows(pool.x, begin, n), rows(pool.y, begin, n)};
  }
  data::Batch all(std::int64_t step) const {
    const std::int64_t begin = begin_of(step, 0);
    const std::int64_t n = begin_of(step, sizes.size()) - begin;
    return {rows(pool.x, begin, n), rows(pool.y, begin, n)};
  }
};

// Taken for the global batch, of which the others then leave out their parts.
TEST(UnevenParts, APartThatIsTheWholeBatchIsAnError) {
  const data::Batch all = make_batch(9);
  for (const std::int64_t begin : {5, 8, 9})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Net net;
      set_weights(net);
      DistributedDataParallel ddp(net, group);
      const data::Batch part = group->rank() == 0 ? part_of(all, 0, begin) : part_of(all, begin, 9 - begin);
      const auto step = [&] { ddp.step(part, [&](const data::Batch& b) { return mean_loss(net, b); }); };
      if (begin < 9) return step();
      const std::string error = error_of(step);
      EXPECT_NE(error.find("have computed 5 samples of a batch of 9"), std::string::npos) << error;
    });
}

// Rank r has r + 3 steps: rank 0 is the first to run out. Some have nothing in between.
Feed make_feed(int world, bool with_gaps) {
  Feed feed;
  for (int r = 0; r < world; ++r) {
    feed.sizes.emplace_back();
    for (int s = 0; s < r + 3; ++s) feed.sizes.back().push_back((3 + 2 * r + 4 * s) % 5 + (with_gaps ? 0 : 1));
  }
  return feed;
}

struct NormNet : Net {
  nn::BatchNorm1d norm{this, "norm", kFeatures};
  Tensor forward(Tensor x) override { return Net::forward(norm(x)); }
};

struct Trained {
  Values weights;
  std::vector<double> losses;
};

template <typename Model = Net>
Trained train_alone(const Feed& feed) {
  Model net;
  set_weights(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Trained run;
  for (std::int64_t s = 0; s < feed.steps(); ++s) {
    const data::Batch batch = feed.all(s);
    if (batch.size() == 0) continue;
    optimizer.zero_grad();
    const Tensor loss = mean_loss(net, batch);
    loss.backward();
    optimizer.step();
    run.losses.push_back(loss.item<double>());
  }
  run.weights = weights_of(net);
  return run;
}

void expect_equal_bits_on_all_ranks(const nn::Module& module, ProcessGroup& group) {
  for (const nn::NamedTensor& each : module.state()) {
    const Tensor first = each.tensor.clone();
    group.broadcast(first, 0)->wait();
    EXPECT_EQ(each.tensor.to_vector<double>(), first.to_vector<double>()) << each.name;
  }
}

class UnevenInputsOver : public ::testing::TestWithParam<World> {};

TEST_P(UnevenInputsOver, JoinStepIsExactByTheGlobalCount) {
  const Feed feed = make_feed(std::get<0>(GetParam()), /*with_gaps=*/true);
  const Trained one = train_alone(feed);
  for (const std::int64_t accumulate : {1, 3})
    run_on(GetParam(), [&](const ProcessGroupPtr& group) {
      Net net;
      set_weights(net);
      optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
      DistributedDataParallel ddp(net, group, {.accumulate = accumulate, .first_bucket_bytes = 32, .bucket_bytes = 64});
      std::vector<double> losses;
      std::int64_t step = 0;
      const auto next = [&] {
        while (step < feed.steps() && feed.all(step).size() == 0) ++step;
        // A rank that has run out needs no tensors.
        const auto rank = static_cast<std::size_t>(group->rank());
        return feed.size(rank, step) > 0 ? feed.own(rank, step) : data::Batch{};
      };
      while (const auto loss = ddp.join_step(next(), [&](const data::Batch& part) { return mean_loss(net, part); })) {
        losses.push_back(loss->item<double>());
        optimizer.step();
        ++step;
      }
      EXPECT_LE(largest_difference({losses}, {one.losses}), kBound);
      EXPECT_LE(largest_difference(weights_of(net), one.weights), kBound);
      expect_equal_bits_on_all_ranks(net, *group);
    });
}

TEST_P(UnevenInputsOver, ALossMayCountForItself) {
  // Two units a sample: the loss is half the mean.
  const Feed feed = make_feed(std::get<0>(GetParam()), /*with_gaps=*/false);
  Net single;
  set_weights(single);
  mul(mean_loss(single, feed.all(0)), 0.5).backward();
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group, {.accumulate = 2});
    ddp.join_step(feed.own(static_cast<std::size_t>(group->rank()), 0), [&](const data::Batch& part) {
      const auto n = static_cast<double>(part.size());
      return LossValue::sum(mul(mean_loss(net, part), n), 2 * n);
    });
    EXPECT_LE(largest_difference(gradients_of(net), gradients_of(single)), 1e-6);
  });
}

TEST_P(UnevenInputsOver, JoinServesPyTorchsIdiom) {
  const Feed feed = make_feed(std::get<0>(GetParam()), /*with_gaps=*/false);
  const Trained one = train_alone(feed);
  const auto train = [&](const ProcessGroupPtr& group, bool keep_up) {
    Net net;
    set_weights(net);
    optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64});
    const auto rank = static_cast<std::size_t>(group->rank());
    const auto loop = [&] {
      for (std::size_t s = 0; s < feed.sizes[rank].size(); ++s) {
        const data::Batch own = feed.own(rank, static_cast<std::int64_t>(s));
        optimizer.zero_grad();
        cross_entropy(ddp(own.x), own.y).backward();
        optimizer.step();
      }
    };
    ddp.join(loop, keep_up ? [&] { optimizer.step(); } : std::function<void()>());
    expect_equal_bits_on_all_ranks(net, *group);
    if (keep_up) {  // also the optimizer's state
      const auto state = optimizer.state();
      for (const nn::NamedTensor& each : state.tensors) {
        const Tensor first = each.tensor.clone();
        group->broadcast(first, group->world_size() - 1)->wait();
        EXPECT_EQ(each.tensor.to_vector<double>(), first.to_vector<double>()) << each.name;
      }
    }
    return weights_of(net);
  };
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    EXPECT_LE(largest_difference(train(group, true), one.weights), kBound);
    EXPECT_LE(largest_difference(train(group, false), one.weights), kBound);
  });
}

TEST_P(UnevenInputsOver, BuffersAreThoseOfARankThatHasNotRunOut) {
  const Feed feed = make_feed(std::get<0>(GetParam()), /*with_gaps=*/false);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    NormNet net;
    set_weights(net);
    DistributedDataParallel ddp(net, group);
    const auto rank = static_cast<std::size_t>(group->rank());
    ddp.join([&] {
      for (std::size_t s = 0; s < feed.sizes[rank].size(); ++s) ddp(rows(feed.pool.x, 0, 4)).sum().backward();
    });
    expect_equal_bits_on_all_ranks(net, *group);
    EXPECT_EQ(net.norm.num_batches_tracked.item<std::int64_t>(), feed.steps());
  });
}

TEST_P(UnevenInputsOver, SlicesUnderNoSyncCountTogether) {
  const int world = std::get<0>(GetParam());
  // Rank r has two slices of r + 1 samples.
  std::int64_t total = 0;
  for (int r = 0; r < world; ++r) total += 2 * (r + 1);
  const data::Batch batch = make_batch(total);
  Net single;
  set_weights(single);
  mean_loss(single, batch).backward();
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group);
    const std::int64_t n = group->rank() + 1;
    const std::int64_t begin = n * (n - 1);
    const data::Batch a = part_of(batch, begin, n);
    const data::Batch b = part_of(batch, begin + n, n);
    Values averaged;
    ddp.join([&] {
      {
        const auto guard = ddp.no_sync();
        mul(cross_entropy(ddp(a.x), a.y), 0.5).backward();
      }
      mul(cross_entropy(ddp(b.x), b.y), 0.5).backward();
      averaged = gradients_of(net);
    });
    EXPECT_LE(largest_difference(averaged, gradients_of(single)), 1e-6);
  });
}

TEST_P(UnevenInputsOver, SynchronisedBatchNormTakesPartInJoinStep) {
  Feed feed = make_feed(std::get<0>(GetParam()), /*with_gaps=*/true);
  for (auto& rank : feed.sizes) rank.back() += 2;  // never one sample in all
  const Trained one = train_alone<NormNet>(feed);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    NormNet net;
    set_weights(net);
    convert_sync_batch_norm(net, group);
    optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    DistributedDataParallel ddp(net, group);
    for (std::int64_t step = 0;; ++step) {
      const data::Batch own = feed.own(static_cast<std::size_t>(group->rank()), step);
      if (!ddp.join_step(own, [&](const data::Batch& part) { return mean_loss(net, part); })) break;
      optimizer.step();
    }
    EXPECT_LE(largest_difference(weights_of(net), one.weights), kBound);
    EXPECT_NE(error_of([&] { ddp.join([] {}); }).find("(layer 'norm')"), std::string::npos);
  });
}

TEST_P(UnevenInputsOver, NobodyNeedsToHaveAnything) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    const auto never = [&](const data::Batch& part) {
      ADD_FAILURE();
      return mean_loss(net, part);
    };
    EXPECT_FALSE(ddp.join_step({}, never).has_value());
    int kept_up = 0;
    ddp.join([] {}, [&] { ++kept_up; });
    EXPECT_EQ(kept_up, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, UnevenInputsOver, all_worlds(), world_name);

TEST(UnevenInputs, BatchNormStatisticsFollowTheRanksThatGoOn) {
  constexpr int kSteps = 30;
  for (const std::vector<int>& steps : {std::vector<int>{1, kSteps, 3}, {3, 1, kSteps}, {kSteps, 1, 1}})
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      NormNet net;
      DistributedDataParallel ddp(net, group);
      data::Batch full = make_batch(4);
      full.x = add(full.x, 5.0);
      int step = 0;
      const auto next = [&] {
        const bool ran_out = step++ >= steps[static_cast<std::size_t>(group->rank())];
        return ran_out ? data::Batch{} : full;
      };
      while (ddp.join_step(next(), [&](const data::Batch& part) { return mean_loss(net, part); })) {
      }
      expect_equal_bits_on_all_ranks(net, *group);
      EXPECT_EQ(net.norm.num_batches_tracked.item<std::int64_t>(), kSteps);
      EXPECT_GT(net.norm.running_mean.to_vector<double>()[0], 4.0);
    });
}

// What an average that does not look at the counts makes of shares of 1 and 7 samples.
TEST(UnevenInputs, AnAverageByRanksWouldShow) {
  const data::Batch batch = make_batch(8);
  Net single;
  set_weights(single);
  mean_loss(single, batch).backward();
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group);
    const data::Batch own = group->rank() == 0 ? part_of(batch, 0, 1) : part_of(batch, 1, 7);
    cross_entropy(ddp(own.x), own.y).backward();
    EXPECT_GT(largest_difference(gradients_of(net), gradients_of(single)), 100 * kBound);
    net.zero_grad();
    ddp.join([&] { cross_entropy(ddp(own.x), own.y).backward(); });
    EXPECT_LE(largest_difference(gradients_of(net), gradients_of(single)), kBound);
  });
}

TEST(UnevenInputs, OneProcessEndsWithAnEmptyBatch) {
  for (const int devices : {1, 2}) {
    TrainingStepOptions options;
    for (int d = 0; d < devices; ++d) options.devices.emplace_back(kCPU, d);
    TrainingStep step([] { return std::make_unique<Net>(); }, options);
    EXPECT_TRUE(step.join(make_batch(5), mean_loss).has_value());
    EXPECT_FALSE(step.join({}, mean_loss).has_value());
  }
}

TEST(UnevenInputs, AJobOfOneProcessEndsLikewise) {
  for (const char* name : {"RANK", "WORLD_SIZE"}) unsetenv(name);
  const Job job = init();
  TrainingStep step([] { return std::make_unique<Net>(); }, {.job = &job});
  EXPECT_TRUE(step.join(make_batch(5), mean_loss).has_value());
  EXPECT_FALSE(step.join({}, mean_loss).has_value());
}

TEST(UnevenInputs, AnExceptionInTheLoopLeavesTheJoin) {
  Net net;
  set_weights(net);
  DistributedDataParallel ddp(net, make_single_process_group());
  EXPECT_EQ(error_of([&] { ddp.join([] { throw Error("the file is damaged"); }); }), "the file is damaged");
  int calls = 0;
  ddp.join([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  EXPECT_NE(error_of([&] { ddp.join([&] { ddp.join([] {}); }); }).find("inside join()"), std::string::npos);
}

TEST(UnevenInputs, AreRefusedInLockstepMode) {
  Net net;
  DistributedDataParallel ddp(net, make_single_process_group(), {.logical_shards = 2});
  const auto part_loss = [&](const data::Batch& part) { return mean_loss(net, part); };
  EXPECT_NE(error_of([&] { ddp.join_step(make_batch(4), part_loss); }).find("not for lockstep mode"),
            std::string::npos);
  EXPECT_NE(error_of([&] { ddp.join([] {}); }).find("not for lockstep mode"), std::string::npos);
  TrainingStep step([] { return std::make_unique<Net>(); }, {.logical_shards = 2});
  EXPECT_NE(error_of([&] { step.join(make_batch(4), mean_loss); }).find("not for lockstep mode"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
