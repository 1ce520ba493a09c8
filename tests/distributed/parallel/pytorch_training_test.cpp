// Hooks, static graphs, accumulation, unused parameters and models that differ, under the names that PyTorch's tests
// have for it (torch/testing/_internal/distributed/distributed_test.py); docs/pytorch.md has the whole list.

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/distributed/parallel/reduction/power_sgd.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr double kBound = 5e-6;  // of weights below 1 in float32, added in another order

struct NormNet : Net {
  nn::BatchNorm1d norm{this, "norm", kFeatures};
  Tensor forward(Tensor x) override { return Net::forward(norm(x)); }
};

void expect_rank0s_state(bool broadcast_buffers) {
  run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
    NormNet net;
    const auto floats = [&] {
      std::vector<nn::NamedTensor> tensors = net.state();
      std::erase_if(tensors, [](const nn::NamedTensor& each) { return !each.tensor.is_floating_point(); });
      return tensors;
    };
    for (const nn::NamedTensor& each : floats()) fill_values(each.tensor.detach(), group->rank() + 1.0);
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = broadcast_buffers});
    for (const nn::NamedTensor& each : floats()) EXPECT_EQ(each.tensor.to_vector<double>().back(), 1.0) << each.name;
  });
}
TEST(DistributedTest, ddp_sync_module_states) {
  expect_rank0s_state(true);
}
TEST(DistributedTest, ddp_init_sync_buffers_with_forward_sync_buffers_false) {
  expect_rank0s_state(false);
}

TEST(DistributedTest, ddp_hook_parity_powerSGD) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const auto train = [&](const CommunicationHookPtr& hook) {
      Net net;
      set_weights(net);
      DistributedDataParallel ddp(net, group, {.hook = hook});
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      for (std::uint32_t step = 0; step < 6; ++step) {
        ddp.step(make_batch(8, step), [&](const data::Batch& part) { return mean_loss(net, part); });
        optimizer.step();
      }
      return weights_of(net);
    };
    // Of full rank nothing is left out; and before its first iteration nothing is compressed.
    EXPECT_LE(
        largest_difference(train(power_sgd({.rank = 8, .start_iteration = 2, .min_compression = 0.0})), train(nullptr)),
        1e-4);
    EXPECT_EQ(train(power_sgd({.rank = 1, .start_iteration = 100})), train(nullptr));
  });
}

struct AverageOver final : CommunicationHook {
  explicit AverageOver(bool then) : then(then) {}
  std::string name() const override { return "average"; }
  WorkPtr reduce(const GradientBucket& bucket, ProcessGroup& group) override {
    if (!then) return group.all_reduce(bucket.flat, ReduceOp::avg);
    return continue_with(group.all_reduce(bucket.flat), [flat = bucket.flat, &group]() -> WorkPtr {
      const NoGradGuard no_grad;
      flat.mul_(1.0 / group.world_size());
      return nullptr;
    });
  }
  bool then;
};

// The hook's group is the step's, be it a part of the job.
TEST(DistributedTest, ddp_hook_parity_allreduce_process_group) {
  run_on({4, Link::in_process}, [](const ProcessGroupPtr& job) {
    const ProcessGroupPtr pair = job->split(job->rank() % 2);
    const auto train = [&](const CommunicationHookPtr& hook) {
      Net net;
      set_weights(net);
      DistributedDataParallel ddp(net, pair, {.hook = hook});
      ddp.step(make_batch(9, static_cast<std::uint32_t>(job->rank() % 2)),
               [&](const data::Batch& part) { return mean_loss(net, part); });
      return gradients_of(net);
    };
    EXPECT_EQ(train(std::make_shared<AverageOver>(false)), train(nullptr));
  });
}

void expect_accumulation(const CommunicationHookPtr& hook) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Net net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(
        net, group, {.hook = hook ? std::make_shared<AverageOver>(*dynamic_cast<AverageOver*>(hook.get())) : nullptr});
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      const data::Batch batch = make_batch(8, seed);
      const data::Batch own = part_of(batch, 4 * group->rank(), 4);
      mean_loss(alone, batch).backward();
      if (seed < 3) {
        const auto guard = ddp.no_sync();
        cross_entropy(ddp(own.x), own.y).backward();
        // Own gradients: those of the ranks differ.
        const Tensor mine = net.fc1.weight.grad().clone(), sum = mine.clone();
        group->all_reduce(sum)->wait();
        EXPECT_GT(largest_difference({sum.to_vector<double>()}, {mul(mine, 2.0).to_vector<double>()}), 1e-4);
      } else {
        cross_entropy(ddp(own.x), own.y).backward();
      }
    }
    EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
  });
}
TEST(DistributedTest, accumulate_gradients_no_sync_grad_is_view) {
  expect_accumulation(nullptr);
}
TEST(DistributedTest, accumulate_gradients_no_sync_allreduce_hook) {
  expect_accumulation(std::make_shared<AverageOver>(false));
}
TEST(DistributedTest, accumulate_gradients_no_sync_allreduce_with_then_hook) {
  expect_accumulation(std::make_shared<AverageOver>(true));
}

// Passes without communication, then one with: all ranks have the same gradients.
TEST(DistributedTest, grads_same_across_ranks_with_no_sync) {
  run_on({3, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group);
    const data::Batch own = make_batch(4, static_cast<std::uint32_t>(group->rank()));
    {
      const auto guard = ddp.no_sync();
      cross_entropy(ddp(own.x), own.y).backward();
    }
    cross_entropy(ddp(own.x), own.y).backward();
    for (const Tensor& parameter : net.parameters()) {
      const Tensor first = parameter.grad().clone();
      group->broadcast(first, 0)->wait();
      EXPECT_EQ(first.to_vector<double>(), parameter.grad().to_vector<double>());
    }
  });
}

struct Branches : Net {
  nn::Linear spare{this, "spare", kFeatures, kFeatures};
  Tensor run(Tensor x, bool use) { return Net::forward(use ? spare(x) : x); }
};

TEST(DistributedTest, static_graph_api_cpu) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const auto train = [&](bool static_graph) {
      Branches net;
      set_weights(net);
      DistributedDataParallel ddp(net, group, {.static_graph = static_graph, .first_bucket_bytes = 32});
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      for (std::uint32_t step = 0; step < 3; ++step) {
        ddp.step(make_batch(8, step),
                 [&](const data::Batch& part) { return cross_entropy(net.run(part.x, false), part.y); });
        optimizer.step();
      }
      return weights_of(net);
    };
    EXPECT_EQ(train(true), train(false));
  });
}

// A promise that is not kept is an error that names the parameter.
void expect_broken_promise() {
  Branches net;
  set_weights(net);
  DistributedDataParallel ddp(net, make_single_process_group(), {.static_graph = true, .first_bucket_bytes = 32});
  const auto step = [&](bool use) {
    ddp.step(make_batch(8), [&](const data::Batch& part) { return cross_entropy(net.run(part.x, use), part.y); });
  };
  step(false);
  const std::string error = error_of([&] { step(true); });
  EXPECT_NE(error.find("'spare."), std::string::npos) << error;
}
TEST(DistributedTest, invalid_static_graph) {
  expect_broken_promise();
}
TEST(DistributedTest, detect_ddp_is_actually_static) {
  expect_broken_promise();
}

// The module runs twice before one backward.
TEST(DistributedTest, static_graph_multi_forward) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    for (const bool static_graph : {false, true}) {
      Net net, alone;
      set_weights(net);
      set_weights(alone);
      DistributedDataParallel ddp(net, group, {.static_graph = static_graph});
      const data::Batch batch = make_batch(8);
      for (int step = 0; step < 2; ++step) {
        const auto twice = [](nn::Module& module, const data::Batch& part) {
          return add(mean_loss(module, part), cross_entropy(module.forward(mul(part.x, 0.5)), part.y));
        };
        ddp.step(batch, [&](const data::Batch& part) { return twice(net, part); });
        alone.zero_grad();
        twice(alone, batch).backward();
        EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
      }
    }
  });
}

// The layer that is used depends on the rank and the step.
TEST(DistributedTest, different_graph_across_ranks) {
  run_on({3, Link::in_process}, [](const ProcessGroupPtr& group) {
    Branches net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64});
    for (int step = 0; step < 3; ++step) {
      const data::Batch batch = make_batch(9, static_cast<std::uint32_t>(step));
      const auto uses = [&](int rank) { return rank == step; };
      ddp.step(batch,
               [&](const data::Batch& part) { return cross_entropy(net.run(part.x, uses(group->rank())), part.y); });
      alone.zero_grad();
      for (int rank = 0; rank < 3; ++rank) {
        const data::Batch part = part_of(batch, 3 * rank, 3);
        mul(cross_entropy(alone.run(part.x, uses(rank)), part.y), 1.0 / 3.0).backward();
      }
      EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
    }
  });
}

// Gradients of what is not used count as zero, and whoever uses it later finds it in step.
TEST(DistributedTest, skip_all_reduce_unused_parameters) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Branches net;
    set_weights(net);
    DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64});
    optim::SGD optimizer(net.parameters(), {.lr = 0.1, .weight_decay = 0.1});
    const std::vector<double> before = net.spare.weight.to_vector<double>();
    for (int step = 0; step < 3; ++step) {
      ddp.step(make_batch(8), [&](const data::Batch& part) { return cross_entropy(net.run(part.x, false), part.y); });
      optimizer.step();
    }
    EXPECT_EQ(ddp.unused_everywhere(), (std::vector<std::string>{"spare.weight", "spare.bias"}));
    EXPECT_EQ(net.spare.weight.to_vector<double>(), before);
  });
}

void expect_output_unused_in_loss() {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    struct TwoHeads : Net {
      nn::Linear other{this, "other", kFeatures, kClasses};
    };
    TwoHeads net, alone;
    set_weights(net);
    set_weights(alone);
    const auto outputs = [](TwoHeads& module, const Tensor& x) {
      return std::pair(module.Net::forward(x), module.other(x));
    };
    DistributedDataParallel ddp(net, group);
    const data::Batch batch = make_batch(8);
    ddp.step(batch, [&](const data::Batch& part) {
      const auto [a, b] = outputs(net, part.x);
      return cross_entropy(group->rank() == 0 ? a : b, part.y);
    });
    for (const int rank : {0, 1}) {
      const data::Batch part = part_of(batch, 4 * rank, 4);
      const auto [a, b] = outputs(alone, part.x);
      mul(cross_entropy(rank == 0 ? a : b, part.y), 0.5).backward();
    }
    EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
  });
}
TEST(DistributedTest, output_unused_in_loss_tuple_module) {
  expect_output_unused_in_loss();
}
TEST(DistributedTest, output_unused_in_loss_dict_module) {
  expect_output_unused_in_loss();
}

// An output without gradients: there is no backward, and nothing waits for one.
TEST(DistributedTest, ddp_returns_tensor_with_no_grad) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    EXPECT_FALSE(ddp(make_batch(4).x).detach().requires_grad());
    cross_entropy(ddp(make_batch(4).x), make_batch(4).y).backward();
    EXPECT_TRUE(net.fc1.weight.grad().defined());
  });
}

TEST(DistributedTest, verify_model_across_rank_without_logger) {
  const auto errors =
      lockstep::testing::errors_of_ranks(2, Link::in_process, std::chrono::seconds(10), [](ProcessGroup& group) {
        nn::Linear net(group.rank() == 0 ? 3 : 4, 3);
        DistributedDataParallel ddp(net, ProcessGroupPtr(ProcessGroupPtr(), &group));
      });
  for (const std::string& error : errors) EXPECT_NE(error.find("differs from rank 0's"), std::string::npos) << error;
}

// Buckets name their parameters, each once, and those that are not trained are in none.
TEST(DistributedTest, ddp_build_debug_param_to_name_mapping_requires_grad) {
  struct Names final : CommunicationHook {
    std::multiset<std::string> seen;
    std::string name() const override { return "names"; }
    WorkPtr reduce(const GradientBucket& bucket, ProcessGroup& group) override {
      for (const nn::NamedTensor& each : bucket.gradients) seen.insert(each.name);
      return group.all_reduce(bucket.flat, ReduceOp::avg);
    }
  };
  for (const bool frozen : {false, true})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Net net;
      if (frozen) net.fc1.weight.set_requires_grad(false);
      const auto names = std::make_shared<Names>();
      DistributedDataParallel ddp(net, group, {.hook = names});
      ddp.step(make_batch(4), [&](const data::Batch& part) { return mean_loss(net, part); });
      std::multiset<std::string> expected{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
      if (frozen) expected.erase("fc1.weight");
      EXPECT_EQ(names->seen, expected);
      EXPECT_EQ(net.fc1.weight.grad().defined(), !frozen);
    });
}

// A module is of no step any more once that is gone; another one can take it.
TEST(DistributedTest, ddp_remove_autograd_hooks) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    { DistributedDataParallel ddp(net, group); }
    const std::size_t before = group->records().size();
    mean_loss(net, make_batch(4)).backward();
    EXPECT_EQ(group->records().size(), before);
    DistributedDataParallel again(net, group);
    again.step(make_batch(4), [&](const data::Batch& part) { return mean_loss(net, part); });
  });
}

// Of every parameter: what one process computes in a step with two losses of shared layers.
TEST(DistributedTest, get_data_parallel_params) {
  Net net;
  DistributedDataParallel ddp(net, make_single_process_group());
  std::vector<std::string> names;
  for (const nn::NamedTensor& each : ddp.module().named_parameters()) names.push_back(each.name);
  EXPECT_EQ(names, (std::vector<std::string>{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}));
  EXPECT_EQ(&ddp.module(), &net);
}

// A tensor that is made in forward() takes part in the graph like any other.
void expect_new_tensor(bool static_graph) {
  struct Shifted : Net {
    Tensor forward(Tensor x) override { return Net::forward(add(x, ones(x.sizes()))); }
  };
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Shifted net, alone;
    set_weights(net);
    set_weights(alone);
    DistributedDataParallel ddp(net, group, {.static_graph = static_graph});
    const data::Batch batch = make_batch(8);
    for (int step = 0; step < 2; ++step) ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); });
    mean_loss(alone, batch).backward();
    EXPECT_LE(largest_difference(gradients_of(net), gradients_of(alone)), kBound);
  });
}
TEST(DistributedTest, ddp_new_tensor_in_fwd) {
  expect_new_tensor(false);
}
TEST(DistributedTest, ddp_new_tensor_in_fwd_static_graph) {
  expect_new_tensor(true);
}

// A backward() leaves no graph behind it; gradients that are functions come from grad().
TEST(DistributedTest, ddp_create_graph) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    cross_entropy(ddp(make_batch(4).x), make_batch(4).y).backward();
    for (const Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().requires_grad());
  });
}

}  // namespace
}  // namespace lockstep::distributed
