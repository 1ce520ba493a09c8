// What users of PyTorch's DistributedDataParallel rely on, under the names that PyTorch's own tests have for it
// (torch/testing/_internal/distributed/distributed_test.py). docs/pytorch.md has the whole list.

#include <algorithm>
#include <mutex>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr double kBound = 1e-6;  // of gradients below 1 in float32, added in another order

// This rank's samples, in PyTorch's idiom: as many on each.
data::Batch own_part(const data::Batch& batch, const ProcessGroup& group) {
  const std::int64_t n = batch.size() / group.world_size();
  return part_of(batch, group.rank() * n, n);
}

Values gradients_or_none(const nn::Module& module) {
  Values gradients;
  for (const Tensor& parameter : module.parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().to_vector<double>() : std::vector<double>());
  return gradients;
}

TEST(DistributedTest, DistributedDataParallel) {
  run_on({3, Link::gloo}, [](const ProcessGroupPtr& group) {
    Net net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(net, group);
    optim::SGD optimizer(net.parameters(), {.lr = 0.1}), reference(alone.parameters(), {.lr = 0.1});
    for (std::uint32_t step = 0; step < 5; ++step) {
      const data::Batch batch = make_batch(12, step);
      const data::Batch own = own_part(batch, *group);
      optimizer.zero_grad();
      cross_entropy(ddp(own.x), own.y).backward();
      optimizer.step();
      reference.zero_grad();
      mean_loss(alone, batch).backward();
      reference.step();
    }
    EXPECT_LE(largest_difference(weights_of(net), weights_of(alone)), kBound);
  });
}

TEST(DistributedTest, DistributedDataParallel_requires_grad) {
  Net net;
  for (const Tensor& parameter : net.parameters()) parameter.set_requires_grad(false);
  EXPECT_NE(error_of([&] {
              DistributedDataParallel ddp(net, make_single_process_group());
            }).find("no parameter that requires gradients"),
            std::string::npos);
}

// Gradients of two backward passes, the first without communication, are the average of the sums.
TEST(DistributedTest, accumulate_gradients_no_sync) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(net, group);
    for (std::uint32_t round = 0; round < 3; ++round) {
      net.zero_grad();
      alone.zero_grad();
      for (const std::uint32_t seed : {2 * round, 2 * round + 1}) {
        const data::Batch batch = make_batch(8, seed);
        const data::Batch own = own_part(batch, *group);
        mean_loss(alone, batch).backward();
        if (seed % 2 == 1) {
          cross_entropy(ddp(own.x), own.y).backward();
          continue;
        }
        const auto guard = ddp.no_sync();
        cross_entropy(ddp(own.x), own.y).backward();
        EXPECT_GT(largest_difference(gradients_of(net), gradients_of(alone)), 1e-4);
      }
      EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
    }
  });
}

// One layer that some passes use, on some ranks.
struct Detour : Net {
  nn::Linear detour{this, "detour", kFeatures, kFeatures};
  Tensor run(Tensor x, bool take) { return Net::forward(take ? detour(x) : x); }
};

void expect_detour(int who_takes_it) {  // a rank; -1: nobody; 2: both
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Detour net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(net, group);
    const data::Batch batch = make_batch(8);
    const auto takes = [&](int rank) { return who_takes_it == rank || who_takes_it == 2; };
    ddp.step(own_part(batch, *group),
             [&](const data::Batch& part) { return cross_entropy(net.run(part.x, takes(group->rank())), part.y); });
    for (const int rank : {0, 1}) {
      const data::Batch part = part_of(batch, 4 * rank, 4);
      mul(cross_entropy(alone.run(part.x, takes(rank)), part.y), 0.5).backward();
    }
    EXPECT_LE(largest_difference(gradients_or_none(net), gradients_or_none(alone)), kBound);
    EXPECT_EQ(net.detour.weight.grad().defined(), who_takes_it >= 0);
  });
}

TEST(DistributedTest, ddp_control_flow_different_across_ranks) {
  expect_detour(0);
  expect_detour(1);
}

TEST(DistributedTest, ddp_control_flow_same_across_ranks) {
  expect_detour(2);
}

// A gradient that nobody has stays undefined, and the optimizer leaves the parameter alone.
TEST(DistributedTest, undefined_grad_parity_unused_parameters) {
  expect_detour(-1);
}

TEST(DistributedTest, ddp_shared_grad_acc_unused_params) {
  struct Twice : nn::Module {
    nn::Linear shared{this, "shared", kFeatures, kFeatures};
    nn::Linear unused{this, "unused", kFeatures, kFeatures};
    nn::Linear head{this, "head", kFeatures, kClasses};
    Tensor forward(Tensor x) override { return head(shared(relu(shared(x)))); }
  };
  for (const bool static_graph : {false, true})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Twice net, alone;
      set_weights(net);
      set_weights(alone);
      DistributedDataParallel ddp(net, group, {.static_graph = static_graph, .first_bucket_bytes = 32});
      for (std::uint32_t step = 0; step < 3; ++step) {
        const data::Batch batch = make_batch(8, step);
        ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); });
        alone.zero_grad(/*set_to_none=*/true);
        mean_loss(alone, batch).backward();
        EXPECT_LE(largest_difference(gradients_or_none(net), gradients_or_none(alone)), kBound);
      }
    });
}

template <typename Make>
void expect_refused(const Make& make, const std::string& detail) {
  const auto errors =
      lockstep::testing::errors_of_ranks(3, Link::in_process, std::chrono::seconds(10), [&](ProcessGroup& group) {
        const auto net = make(group.rank());
        DistributedDataParallel ddp(*net, ProcessGroupPtr(ProcessGroupPtr(), &group));
      });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank(s) 1 differs from rank 0's"), std::string::npos) << error;
  EXPECT_NE(errors[1].find(detail), std::string::npos) << errors[1];
}

TEST(DistributedTest, ddp_model_diff_shape_across_ranks) {
  expect_refused([](int rank) { return std::make_unique<nn::Linear>(4, rank == 1 ? 5 : 3); }, "weight");
}

TEST(DistributedTest, ddp_model_diff_num_params_across_ranks) {
  expect_refused([](int rank) { return std::make_unique<nn::Linear>(4, 3, nn::LinearOptions{.bias = rank != 1}); },
                 "bias");
}

TEST(DistributedTest, ddp_broadcast_buffer) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    struct Norm : Net {
      nn::BatchNorm1d norm{this, "norm", kFeatures};
      Tensor forward(Tensor x) override { return Net::forward(norm(x)); }
    };
    for (const bool broadcast : {true, false}) {
      Norm net;
      DistributedDataParallel ddp(net, group, {.broadcast_buffers = broadcast});
      fill_values(net.norm.running_mean, group->rank() + 1.0);
      const data::Batch batch = make_batch(4);
      const Tensor before = net.norm.running_mean.clone();
      ddp(batch.x).sum().backward();
      // 0.9 of what was there before the pass: rank 0's, or its own.
      const double fresh =
          net.norm.running_mean.to_vector<double>()[0] - 0.9 * (broadcast ? 1.0 : before.to_vector<double>()[0]);
      Norm alone;
      alone(batch.x);
      EXPECT_NEAR(fresh, alone.norm.running_mean.to_vector<double>()[0], 1e-6);
    }
  });
}

TEST(DistributedTest, ddp_hook_parity_allreduce) {
  struct Plain final : CommunicationHook {
    std::string name() const override { return "plain"; }
    WorkPtr reduce(const GradientBucket& bucket, ProcessGroup& group) override {
      return group.all_reduce(bucket.flat, ReduceOp::avg);
    }
  };
  run_on({3, Link::in_process}, [](const ProcessGroupPtr& group) {
    const auto train = [&](const CommunicationHookPtr& hook) {
      Net net;
      set_weights(net);
      DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .hook = hook});
      ddp.step(make_batch(11), [&](const data::Batch& part) { return mean_loss(net, part); });
      return gradients_of(net);
    };
    EXPECT_EQ(train(std::make_shared<Plain>()), train(nullptr));
  });
}

// Forward without recording communicates nothing: ranks may evaluate as often as they like.
TEST(DistributedTest, ddp_inference) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    const std::size_t before = group->records().size();
    const NoGradGuard no_grad;
    for (int i = 0; i <= group->rank(); ++i) ddp(make_batch(3).x);
    EXPECT_EQ(group->records().size(), before);
  });
}

// Ranks with more samples than others: all end together, with the weights of one process.
TEST(DistributedTest, ddp_join_model_equivalence) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(net, group);
    optim::SGD optimizer(net.parameters(), {.lr = 0.1}), reference(alone.parameters(), {.lr = 0.1});
    const int own_steps = group->rank() == 0 ? 2 : 5;
    const auto batch_of = [](int rank, int step) {
      return make_batch(4, static_cast<std::uint32_t>(10 * rank + step));
    };
    ddp.join(
        [&] {
          for (int step = 0; step < own_steps; ++step) {
            const data::Batch own = batch_of(group->rank(), step);
            optimizer.zero_grad();
            cross_entropy(ddp(own.x), own.y).backward();
            optimizer.step();
          }
        },
        [&] { optimizer.step(); });
    for (int step = 0; step < 5; ++step) {
      reference.zero_grad();
      for (const int rank : {0, 1})
        if (step < (rank == 0 ? 2 : 5)) mul(mean_loss(alone, batch_of(rank, step)), step < 2 ? 0.5 : 1.0).backward();
      reference.step();
    }
    EXPECT_LE(largest_difference(weights_of(net), weights_of(alone)), kBound);
  });
}

}  // namespace
}  // namespace lockstep::distributed
