// What programs do with a step that its authors would not: exceptions in backward(), modules of several arguments,
// a guard that lives longer than its model, batches in which nothing counts.

#include <optional>
#include <utility>

#include "lockstep/autograd/backward.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

TEST(UnusualSteps, AnExceptionInBackwardLeavesTheNextPassWhole) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 16, .bucket_bytes = 16});
    const data::Batch batch = make_batch(8), part = part_of(batch, group->rank() * 4, 4);
    const std::uint64_t hook = net.fc1.weight.register_hook([](const Tensor&) { throw Error("in a hook"); });
    EXPECT_EQ(error_of([&] { cross_entropy(ddp(part.x), part.y).backward(); }), "in a hook");
    net.fc1.weight.remove_hook(hook);
    net.zero_grad();
    cross_entropy(ddp(part.x), part.y).backward();
    Net alone;
    set_weights(alone);
    mean_loss(alone, batch).backward();
    EXPECT_LT(largest_difference(gradients_of(net), gradients_of(alone)), 1e-6);
    const auto of_first_layer = [](Net& of, const Tensor& x) { return of.fc1(x).square().mean(); };
    net.zero_grad();
    ddp([&] { return of_first_layer(net, part.x); }).backward();
    alone.zero_grad();
    of_first_layer(alone, batch.x).backward();
    EXPECT_LT(
        largest_difference({net.fc1.weight.grad().to_vector<double>()}, {alone.fc1.weight.grad().to_vector<double>()}),
        1e-6);
  });
}

// On rank 1 the step's third loss throws, and `then` is what the program does about it.
std::vector<std::string> errors_after(const std::function<void(DistributedDataParallel&, const data::Batch&)>& then) {
  return lockstep::testing::errors_of_ranks(2, Link::shm, Milliseconds(2'000), [&](ProcessGroup& group) {
    Net net;
    set_weights(net);
    DistributedDataParallel ddp(net, ProcessGroupPtr(ProcessGroupPtr(), &group));
    const data::Batch batch = make_batch(8);
    for (int i = 0; i < 5; ++i) {
      try {
        ddp.step(batch, [&](const data::Batch& part) {
          if (i == 2 && group.rank() == 1) throw std::runtime_error("out of milk");
          return mean_loss(net, part);
        });
      } catch (const std::runtime_error& error) {
        if (std::string(error.what()) != "out of milk") throw;
        return then(ddp, batch);
      }
    }
  });
}

TEST(UnusualSteps, AnExceptionThatOneRankCatchesIsNamedOnTheOthers) {
  const std::string cause = "rank 1 threw an exception, which the program has caught: out of milk; ";
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  using Ddp = DistributedDataParallel;
  const auto leave = [](Ddp&, const data::Batch&) {};
  const auto take_another_step = [](Ddp& ddp, const data::Batch& batch) {
    ddp.join_step(batch, [&](const data::Batch& part) { return mean_loss(ddp.module(), part); });
  };
  has(errors_after(leave)[0], cause + "then left the group");
  for (const std::string& error : errors_after(take_another_step)) has(error, cause);
  // In backward(), where the loop is the program's own.
  const auto errors = lockstep::testing::errors_of_ranks(2, Link::shm, Milliseconds(2'000), [&](ProcessGroup& group) {
    Net net;
    Ddp ddp(net, ProcessGroupPtr(ProcessGroupPtr(), &group));
    if (group.rank() == 1) net.fc1.weight.register_hook([](const Tensor&) { throw Error("out of milk"); });
    try {
      mean_loss(net, make_batch(8)).backward();
    } catch (const Error& error) {
      if (group.rank() == 0) throw;
    }
  });
  has(errors[0], "rank 1 threw an exception, which the program has caught: ");
}

TEST(UnusualSteps, AnExceptionIsForgottenWithACollectiveThatEndsWell) {
  const auto errors = lockstep::testing::errors_of_ranks(2, Link::shm, Milliseconds(2'000), [](ProcessGroup& group) {
    if (group.rank() == 1) group.remember_exception("out of milk");
    group.barrier()->wait();
    if (group.rank() == 0) group.barrier()->wait();
  });
  EXPECT_NE(errors[0].find("rank 1 left the group in good order"), std::string::npos) << errors[0];
}

TEST(UnusualSteps, TakesModulesOfAnyArguments) {
  struct Pair : nn::ModuleOf<Pair> {
    nn::Linear left{this, "left", kFeatures, kClasses}, right{this, "right", kFeatures, kClasses};
    std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b) { return {left(a), right(b)}; }
  };
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Pair net, alone;
    for (Pair* each : {&net, &alone}) set_weights(*each);
    DistributedDataParallel ddp(net, group);
    const data::Batch batch = make_batch(8), part = part_of(batch, group->rank() * 4, 4);
    const auto [a, b] = ddp([&] { return net(part.x, part.x * 2.0); });
    cross_entropy(a + b, part.y).backward();
    const auto [c, d] = alone(batch.x, batch.x * 2.0);
    cross_entropy(c + d, batch.y).backward();
    EXPECT_LT(largest_difference(gradients_of(net), gradients_of(alone)), 1e-6);
    EXPECT_NE(error_of([&] { ddp.join([&] { ddp([&] { return net(part.x, part.x).first; }); }); }).find("join_step()"),
              std::string::npos);
  });
}

TEST(UnusualSteps, NoSyncMayLiveLongerThanItsModel) {
  Net net;
  std::optional<DistributedDataParallel> ddp(std::in_place, net, make_single_process_group());
  std::optional<NoSync> guard(ddp->no_sync());
  ddp.reset();
  guard.reset();
}

// The loss of the only sample counts nothing, as of a batch that is masked as a whole.
TEST(UnusualSteps, NothingThatCountsIsAnErrorOnRanksWithoutSamplesToo) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    TrainingStep step(net, {.group = group});
    const auto masked = [](nn::Module& module, const data::Batch& part) {
      return LossValue::sum((module.forward(part.x) * 0.0).sum(), 0.0);
    };
    EXPECT_NE(error_of([&] { step(make_batch(1), masked); }).find("count 0"), std::string::npos);
    step(make_batch(1), mean_loss);
  });
}

}  // namespace
}  // namespace lockstep::distributed
