// Ranks are threads, each with a model and a Gloo process group of its own.

#include "lockstep/distributed/parallel/distributed_data_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <optional>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/partition.h"
#include "lockstep/distributed/parallel/reduction/reducer_trace.h"
#include "lockstep/nn/nn.h"
#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_close;
using lockstep::testing::make_input;

struct Net : nn::Module {
  explicit Net(std::int64_t hidden = 5) : fc1{this, "fc1", 6, hidden}, fc2{this, "fc2", hidden, 3} {}
  nn::Linear fc1;
  nn::Linear fc2;
  Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
};

// Runs body on `world` threads, each a rank with a Gloo group of its own.
void run_on_ranks(int world, const std::function<void(const ProcessGroupPtr&)>& body) {
  lockstep::testing::run_ranks(world, lockstep::testing::Link::gloo, [&](ProcessGroup& group) {
    body(ProcessGroupPtr(ProcessGroupPtr(), &group));  // not owning
  });
}

data::Batch make_batch(std::int64_t n, std::uint32_t seed = 7) {
  data::Batch batch;
  batch.x = make_input({n, 6}, seed, kFloat32);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < n; ++i) labels.push_back((i * 7 + seed) % 3);
  batch.y = tensor(labels);
  return batch;
}

// Everybody starts from these values, so that runs can be compared.
void set_weights(nn::Module& module) {
  std::uint32_t seed = 1;
  for (const Tensor& parameter : module.parameters())
    copy_values(make_input(parameter.sizes(), seed++, kFloat32, -0.4, 0.4), parameter);
}

std::vector<std::vector<double>> gradients_of(const nn::Module& module) {
  std::vector<std::vector<double>> gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad().to_vector<double>());
  return gradients;
}

void expect_near(const std::vector<std::vector<double>>& actual, const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t p = 0; p < expected.size(); ++p)
    for (std::size_t i = 0; i < expected[p].size(); ++i) ASSERT_NEAR(actual[p][i], expected[p][i], 1e-6) << p;
}

class DdpOver : public ::testing::TestWithParam<int> {};

TEST_P(DdpOver, StepGivesTheGradientsOfTheGlobalBatch) {
  for (const std::int64_t n : {8, 7, 1}) {  // even, uneven, fewer samples than ranks
    SCOPED_TRACE(n);
    const data::Batch batch = make_batch(n);
    Net single;
    set_weights(single);
    const Tensor expected_loss = cross_entropy(single(batch.x), batch.y);
    expected_loss.backward();
    const auto expected = gradients_of(single);

    run_on_ranks(GetParam(), [&](const ProcessGroupPtr& group) {
      Net net;
      if (group->rank() == 0) set_weights(net);  // the others get rank 0's
      DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64});
      for (int repeat = 0; repeat < 2; ++repeat) {
        const Tensor loss =
            ddp.step(batch, [&](const data::Batch& part) { return cross_entropy(net(part.x), part.y); });
        EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(), 1e-6);
        expect_near(gradients_of(net), expected);
      }
    });
  }
}

TEST_P(DdpOver, StepTakesALoadersPart) {
  const data::Batch batch = make_batch(9);
  Net single;
  set_weights(single);
  cross_entropy(single(batch.x), batch.y).backward();
  const auto expected = gradients_of(single);
  run_on_ranks(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group);
    const data::Range range = data::partition(9, group->world_size(), group->rank());
    const data::Batch part{rows(batch.x, range.begin, range.size()), rows(batch.y, range.begin, range.size()), 9};
    ddp.step(part, [&](const data::Batch& mine) { return cross_entropy(net(mine.x), mine.y); });
    expect_near(gradients_of(net), expected);
  });
}

TEST_P(DdpOver, BackwardAveragesAsInPyTorch) {
  const int world = GetParam();
  // Equal parts: the average of the ranks' means is the mean of the whole.
  const data::Batch batch = make_batch(4 * world);
  Net single;
  set_weights(single);
  cross_entropy(single(batch.x), batch.y).backward();
  const auto expected = gradients_of(single);
  run_on_ranks(world, [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group);
    const Tensor x = rows(batch.x, 4 * group->rank(), 4);
    const Tensor y = rows(batch.y, 4 * group->rank(), 4);
    cross_entropy(ddp(x), y).backward();
    expect_near(gradients_of(net), expected);
    // The same in two halves: the first accumulates, the second communicates.
    net.zero_grad();
    {
      const auto begin_no_sync = [&] { return ddp.no_sync(); };  // may be returned and moved
      const std::optional<NoSync> guard(begin_no_sync());
      mul(cross_entropy(ddp(rows(x, 0, 2)), rows(y, 0, 2)), 0.5).backward();
    }
    mul(cross_entropy(ddp(rows(x, 2, 2)), rows(y, 2, 2)), 0.5).backward();
    expect_near(gradients_of(net), expected);
  });
}

TEST_P(DdpOver, BuffersFollowRank0) {
  struct NormNet : nn::Module {
    nn::Linear fc{this, "fc", 6, 4};
    nn::BatchNorm1d norm{this, "norm", 4};
    Tensor forward(Tensor x) override { return norm(fc(x)); }
  };
  std::mutex mutex;
  std::vector<std::vector<double>> seen;
  run_on_ranks(GetParam(), [&](const ProcessGroupPtr& group) {
    NormNet net;
    DistributedDataParallel ddp(net, group);
    const data::Batch batch = make_batch(8, static_cast<std::uint32_t>(group->rank() + 1));
    ddp(batch.x).sum().backward();
    ddp(batch.x).sum().backward();  // starts from rank 0's statistics of the first forward
    const Tensor running = net.named_buffers().front().tensor;
    group->broadcast(running, 0)->wait();
    const std::lock_guard lock(mutex);
    seen.push_back(running.to_vector<double>());
  });
  for (const auto& running : seen) EXPECT_EQ(running, seen.front());
}

INSTANTIATE_TEST_SUITE_P(Worlds, DdpOver, ::testing::Values(2, 3, 4));

TEST(DistributedDataParallel, DifferentModelsAreNamedOnEveryRank) {
  run_on_ranks(3, [](const ProcessGroupPtr& group) {
    Net net(group->rank() == 2 ? 7 : 5);
    const std::string message = error_of([&] { DistributedDataParallel ddp(net, group); });
    EXPECT_NE(message.find("rank(s) 2 differs from rank 0's"), std::string::npos) << message;
    EXPECT_NE(message.find("fc1.weight float32 [7, 6] on rank 2 and parameter fc1.weight float32 [5, 6] on rank 0"),
              std::string::npos)
        << message;
  });
}

TEST(DistributedDataParallel, RanksDrawDifferentNumbers) {
  struct Dropped : nn::Module {
    nn::Linear fc{this, "fc", 6, 64};
    nn::Dropout dropout{this, "dropout", 0.5};
    Tensor forward(Tensor x) override { return dropout(fc(x)); }
  };
  std::mutex mutex;
  std::vector<std::vector<float>> seen(2);
  run_on_ranks(2, [&](const ProcessGroupPtr& group) {
    Dropped net;
    set_weights(net);
    DistributedDataParallel ddp(net, group);
    data::Batch batch;
    batch.x = ones({2, 6});
    batch.y = zeros({2}, {.dtype = kInt64});
    ddp.step(batch, [&](const data::Batch& part) {
      const Tensor out = net(part.x);
      const std::lock_guard lock(mutex);
      seen[static_cast<std::size_t>(group->rank())] = out.to_vector<float>();
      return out.mean();
    });
  });
  EXPECT_NE(seen[0], seen[1]);
}

// What the curves of mnist_train rest on, and the proof that comparing curves can fail.
std::vector<double> curve(const ProcessGroupPtr& group, bool leave_out_all_reduce) {
  Net net;
  set_weights(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.5, .momentum = 0.9});
  DistributedDataParallel ddp(net, group);
  std::vector<double> losses;
  for (std::uint32_t step = 0; step < 20; ++step) {
    const auto loss = [&](const data::Batch& part) { return cross_entropy(net(part.x), part.y); };
    if (leave_out_all_reduce) {
      const auto guard = ddp.no_sync();
      losses.push_back(ddp.step(make_batch(8, step + 1), loss).item<double>());
    } else {
      losses.push_back(ddp.step(make_batch(8, step + 1), loss).item<double>());
    }
    optimizer.step();
  }
  return losses;
}

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return largest;
}

TEST(DistributedDataParallel, CurvesAgreeAndWithoutTheAllReduceTheyDoNot) {
  constexpr double kRelative = 1e-4;
  const std::vector<double> single = curve(make_single_process_group(), false);
  run_on_ranks(2, [&](const ProcessGroupPtr& group) {
    EXPECT_LE(largest_relative_difference(curve(group, false), single), kRelative);
    EXPECT_GT(largest_relative_difference(curve(group, true), single), 10 * kRelative);
  });
}

// Overlap: the first bucket's all-reduce starts on the communication thread before backward has made its last gradient.
TEST(DistributedDataParallel, TheFirstAllReduceStartsWhileBackwardRuns) {
  struct Deep : nn::Module {
    nn::Linear in{this, "in", 256, 512};
    nn::Linear middle{this, "middle", 512, 512};
    nn::Linear out{this, "out", 512, 64};
    Tensor forward(Tensor x) override { return out(relu(middle(relu(in(x))))); }
  };
  run_on_ranks(2, [](const ProcessGroupPtr& group) {
    Deep net;
    DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 1 << 14, .bucket_bytes = 1 << 20});
    const Tensor x = make_input({512, 256}, 3, kFloat32);
    bool overlapped = false;
    for (int step = 0; step < 5 && !overlapped; ++step) {
      net.zero_grad();
      ddp(x).sum().backward();
      const ReducerTrace& trace = ddp.trace();
      EXPECT_LT(trace.launched_ns[0], trace.last_gradient_ns);
      for (const OperationRecord& record : group->records())
        overlapped =
            overlapped || (record.operation.kind == OperationKind::all_reduce &&
                           record.started_ns > trace.first_gradient_ns && record.started_ns < trace.last_gradient_ns);
    }
    EXPECT_TRUE(overlapped);
  });
}

TEST(DistributedDataParallel, TrainsOnEverySampleOfADistributedSampler) {
  constexpr int kWorld = 4;
  const data::Batch all = make_batch(22);
  const auto set = std::make_shared<data::TensorDataset>(all.x, all.y);
  run_on_ranks(kWorld, [&](const ProcessGroupPtr& group) {
    Net net, whole;
    set_weights(net);
    set_weights(whole);
    DistributedDataParallel ddp(net, group);
    const auto sampler = std::make_shared<data::DistributedSampler>(
        22, data::DistributedSamplerOptions{
                .rank = group->rank(), .world_size = kWorld, .shuffle = false, .drop_last = true});
    const data::DataLoader loader(set, {.batch_size = 3, .sampler = sampler});
    std::int64_t seen = 0, begin = 0;
    for (const data::Batch& batch : loader.epoch(0)) {
      const Tensor loss = ddp.step(batch, [&](const data::Batch& part) {
        seen += part.size();
        return cross_entropy(net.forward(part.x), part.y);
      });
      // The ranks' parts are those of consecutive samples, dealt out in turn.
      whole.zero_grad();
      const Tensor expected = cross_entropy(whole.forward(rows(all.x, begin, kWorld * batch.size())),
                                            rows(all.y, begin, kWorld * batch.size()));
      expected.backward();
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
      expect_near(gradients_of(net), gradients_of(whole));
      begin += kWorld * batch.size();
    }
    EXPECT_EQ(seen, 5);  // 22 / 4
  });
}

}  // namespace
}  // namespace lockstep::distributed
