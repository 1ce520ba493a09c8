// Ranks that run out of samples at different times, under the names that PyTorch's tests have for it
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

// Rank r has `steps[r]` batches; returns the weights of each rank at the end, which are the same.
Values train_unevenly(const ProcessGroupPtr& group, const std::vector<int>& steps, bool sync_batch_norm) {
  NormNet net;
  set_weights(net);
  if (sync_batch_norm) convert_sync_batch_norm(net, group);
  DistributedDataParallel ddp(net, group);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const int own = steps[static_cast<std::size_t>(group->rank())];
  for (int step = 0;; ++step) {
    data::Batch batch = make_batch(3, static_cast<std::uint32_t>(10 * group->rank() + step));
    if (step >= own) batch = part_of(batch, 0, 0);
    batch.global_size = 0;
    if (!ddp.join_step(batch, [&](const data::Batch& part) { return mean_loss(net, part); })) break;
    optimizer.step();
    EXPECT_LT(step, *std::ranges::max_element(steps));
  }
  Values weights = weights_of(net);
  for (const Tensor& parameter : net.parameters()) {
    const Tensor first = parameter.detach().clone();
    group->broadcast(first, 0)->wait();
    EXPECT_EQ(first.to_vector<double>(), parameter.to_vector<double>());
  }
  return weights;
}

TEST(DistributedTest, ddp_uneven_inputs) {
  run_on({3, Link::in_process}, [](const ProcessGroupPtr& group) {
    train_unevenly(group, {2, 5, 3}, /*sync_batch_norm=*/false);
  });
}
TEST(DistributedTest, ddp_uneven_inputs_stop_iteration_sync_bn) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    train_unevenly(group, {1, 4}, /*sync_batch_norm=*/true);
  });
}

TEST(DistributedTest, ddp_uneven_input_exception) {
  const auto errors =
      lockstep::testing::errors_of_ranks(2, Link::in_process, std::chrono::seconds(10), [](ProcessGroup& group) {
        Net net;
        DistributedDataParallel ddp(net, ProcessGroupPtr(ProcessGroupPtr(), &group));
        ddp.join([&] {
          for (int step = 0; step < 4; ++step) {
            if (group.rank() == 0 && step == 2) {
              group.abort("the file is damaged");
              throw Error("the file is damaged");
            }
            mean_loss(net, make_batch(3));
            cross_entropy(ddp(make_batch(3).x), make_batch(3).y).backward();
          }
        });
      });
  for (const std::string& error : errors) EXPECT_NE(error.find("the file is damaged"), std::string::npos) << error;
}

// Outside of join() every rank makes every step, and needs no shadow operations.
TEST(DistributedTest, ddp_uneven_input_join_disable) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    const auto operations = [&] {
      const std::size_t before = group->records().size();
      cross_entropy(ddp(make_batch(3).x), make_batch(3).y).backward();
      return group->records().size() - before;
    };
    const std::size_t plain = operations();
    std::size_t joined = 0;
    ddp.join([&] { joined = operations(); });
    EXPECT_GT(joined, plain);
    EXPECT_EQ(operations(), plain);
  });
}

// An average over the samples, however many ranks still have some.
TEST(DistributedTest, ddp_grad_div_uneven_inputs) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(net, group);
    const data::Batch batch = make_batch(4);
    data::Batch own = part_of(batch, 0, group->rank() == 0 ? 4 : 0);
    own.global_size = 0;
    ddp.join_step(own, [&](const data::Batch& part) { return mean_loss(net, part); });
    mean_loss(alone, batch).backward();
    EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
  });
}

}  // namespace
}  // namespace lockstep::distributed
