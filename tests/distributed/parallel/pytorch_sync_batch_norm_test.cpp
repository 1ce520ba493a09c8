// Batch norm over all ranks, under the names that PyTorch's tests have for it
// (torch/testing/_internal/distributed/distributed_test.py); docs/pytorch.md has the whole list.

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

constexpr double kBound = 5e-6;  // of weights below 1 in float32, added in another order

struct NormNet : Net {
  nn::BatchNorm1d norm{this, "norm", kFeatures};
  Tensor forward(Tensor x) override { return Net::forward(norm(x)); }
};

std::vector<double> statistics_of(const NormNet& net) {
  std::vector<double> values = net.norm.running_mean.to_vector<double>();
  const std::vector<double> var = net.norm.running_var.to_vector<double>();
  values.insert(values.end(), var.begin(), var.end());
  return values;
}

/// Trains with synchronised batch norm on `sizes[rank]` samples a rank, against one process with all of them.
template <typename Model = NormNet>
void expect_sync_batch_norm(const std::vector<std::int64_t>& sizes) {
  run_on({static_cast<int>(sizes.size()), Link::in_process}, [&](const ProcessGroupPtr& group) {
    std::int64_t begin = 0, all = 0;
    for (std::size_t r = 0; r < sizes.size(); ++r) {
      if (static_cast<int>(r) < group->rank()) begin += sizes[r];
      all += sizes[r];
    }
    Model net, alone;
    set_weights(net);
    set_weights(alone);
    convert_sync_batch_norm(net, group);
    DistributedDataParallel ddp(net, group);
    optim::SGD optimizer(net.parameters(), {.lr = 0.1}), reference(alone.parameters(), {.lr = 0.1});
    for (std::uint32_t step = 0; step < 3; ++step) {
      const data::Batch batch = make_batch(all, step);
      ddp.step(part_of(batch, begin, sizes[static_cast<std::size_t>(group->rank())]),
               [&](const data::Batch& part) { return mean_loss(net, part); });
      optimizer.step();
      reference.zero_grad();
      mean_loss(alone, batch).backward();
      reference.step();
    }
    EXPECT_LE(largest_difference(weights_of(net), weights_of(alone)), kBound);
    EXPECT_LE(largest_difference({statistics_of(net)}, {statistics_of(alone)}), kBound);
  });
}

TEST(DistributedTest, DistributedDataParallel_SyncBatchNorm) {
  expect_sync_batch_norm({4, 4});
}
TEST(DistributedTest, DistributedDataParallel_SyncBatchNorm_2D_Input) {
  expect_sync_batch_norm({2, 2, 2});
}
TEST(DistributedTest, DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process) {
  expect_sync_batch_norm({1, 1, 1});
}
TEST(DistributedTest, DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value) {
  expect_sync_batch_norm({2, 5, 3});
}
TEST(DistributedTest, DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient) {
  expect_sync_batch_norm({7, 1});
}
TEST(DistributedTest, DistributedDataParallel_SyncBatchNorm_No_Affine) {
  struct Plain : Net {
    nn::BatchNorm1d norm{this, "norm", kFeatures, {.affine = false}};
    Tensor forward(Tensor x) override { return Net::forward(norm(x)); }
  };
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Plain net, alone;
    set_weights(net);
    set_weights(alone);
    EXPECT_EQ(convert_sync_batch_norm(net, group), 1);
    DistributedDataParallel ddp(net, group);
    const data::Batch batch = make_batch(8);
    ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); });
    mean_loss(alone, batch).backward();
    EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
  });
}

// Normalised over the ranks of a group of two, whatever the other group has.
TEST(DistributedTest, SyncBatchNorm_process_group) {
  run_on({4, Link::in_process}, [](const ProcessGroupPtr& job) {
    const int color = job->rank() / 2;
    const ProcessGroupPtr pair = job->split(color);
    NormNet net, alone;
    convert_sync_batch_norm(net, pair);
    const data::Batch batch = make_batch(6, static_cast<std::uint32_t>(color + 1));
    net(part_of(batch, 3 * pair->rank(), 3).x);
    alone(batch.x);
    EXPECT_LE(largest_difference({statistics_of(net)}, {statistics_of(alone)}), kBound);
  });
}

// In evaluation batch norm communicates nothing, and training goes on afterwards.
TEST(DistributedTest, ddp_sync_bn_training_vs_eval) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    NormNet net;
    convert_sync_batch_norm(net, group);
    DistributedDataParallel ddp(net, group);
    const data::Batch batch = make_batch(8);
    const auto step = [&] { ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); }); };
    step();
    const std::size_t before = group->records().size();
    net.eval();
    {
      const NoGradGuard no_grad;
      for (int i = 0; i <= group->rank(); ++i) ddp(batch.x);
    }
    EXPECT_EQ(group->records().size(), before);
    net.train();
    step();
    EXPECT_GT(group->records().size(), before);
  });
}

}  // namespace
}  // namespace lockstep::distributed
