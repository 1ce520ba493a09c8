// Parameters that are frozen and unfrozen while a step exists.

#include "lockstep/autograd/backward.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

void says(const std::string& error, const char* text) {
  EXPECT_NE(error.find(text), std::string::npos) << error;
}

// Its gradients would differ between the ranks without a word.
TEST(Unfreezing, AParameterOfRanksIsRefusedByName) {
  for (const std::int64_t shards : {0, 4})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Net net;
      set_weights(net);
      net.fc1.weight.set_requires_grad(false);
      auto first = std::make_unique<DistributedDataParallel>(net, group, TrainingStepOptions{.logical_shards = shards});
      DistributedDataParallel& ddp = *first;
      const auto loss = [&](const data::Batch& part) { return mean_loss(net, part); };
      ddp.step(make_batch(8), loss);
      net.fc1.weight.set_requires_grad(true);
      says(error_of([&] { ddp.step(make_batch(8), loss); }), "parameter 'fc1.weight' did not require gradients when");
      if (shards == 0) says(error_of([&] { ddp(make_batch(8).x); }), "parameter 'fc1.weight' did not require");
      // Once made again it takes part.
      first.reset();
      DistributedDataParallel again(net, group, {.logical_shards = shards});
      again.step(make_batch(8), loss);
      Net alone;
      set_weights(alone);
      mean_loss(alone, make_batch(8)).backward();
      EXPECT_LT(largest_difference(gradients_of(net), gradients_of(alone)), 1e-6);
    });
}

TEST(Unfreezing, AParameterOfDevices) {
  for (const std::int64_t shards : {0, 4}) {
    TrainingStep step([] { return std::make_unique<Net>(); },
                      {.devices = {Device(), Device()}, .logical_shards = shards});
    set_weights(step.module());
    for (const Tensor& parameter : step.module().parameters()) parameter.set_requires_grad(true);
    step(make_batch(8), mean_loss);
    step.module().parameters()[0].set_requires_grad(false);
    step(make_batch(8), mean_loss);
    EXPECT_FALSE(step.module().parameters()[0].grad().defined());
  }
  Net frozen;
  frozen.fc1.weight.set_requires_grad(false);
  TrainingStep step(frozen, {.logical_shards = 4});
  frozen.fc1.weight.set_requires_grad(true);
  says(error_of([&] { step(make_batch(8), mean_loss); }), "parameter 'fc1.weight' did not require gradients");
  TrainingStep plain(frozen);  // takes it in
  frozen.fc1.weight.set_requires_grad(false);
  plain(make_batch(8), mean_loss);
  frozen.fc1.weight.set_requires_grad(true);
  plain(make_batch(8), mean_loss);
  EXPECT_TRUE(frozen.fc1.weight.grad().defined());
}

// A layer that was made without `this` is in nobody's parameters(): the ranks' would drift apart.
TEST(Unregistered, ALayerIsToldOfInTheFirstStep) {
  struct Forgetful : nn::Module {
    nn::Linear fc1{this, "fc1", kFeatures, 5};
    nn::Linear fc2{5, kClasses};
    Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
  } net;
  TrainingStep step(net);
  const auto log_of_step = [&] {
    ::testing::internal::CaptureStderr();
    step(make_batch(4), mean_loss);
    return ::testing::internal::GetCapturedStderr();
  };
  says(log_of_step(), "computes with 2 tensor(s) that require gradients and are not among its parameters()");
  EXPECT_EQ(log_of_step(), "");
}

// The layer of a critic, which has an optimizer of its own, in the generator's loss.
TEST(Unregistered, NothingIsSaidOfWhatAnOptimizerTrains) {
  Net generator, critic;
  const optim::SGD of_critic(critic.parameters(), {.lr = 0.1});
  TrainingStep step(generator);
  ::testing::internal::CaptureStderr();
  step(make_batch(4), [&](nn::Module& net, const data::Batch& part) {
    return cross_entropy(critic(cat({net(part.x), net(part.x)}, 1)), part.y);
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

std::string log_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

// A loss that asks for slopes of its samples, which are leaves made within it or given in the batch.
TEST(Unregistered, NothingIsSaidOfSamples) {
  Net made, given;
  set_weights(made);
  TrainingStep inside(made);
  const auto penalty = [](nn::Module& net, const Tensor& x, const data::Batch& part) {
    const Tensor loss = cross_entropy(net(x), part.y);
    return loss + grad({loss}, {x}, {}, {.create_graph = true})[0].square().mean();
  };
  EXPECT_EQ(log_of([&] {
              inside(make_batch(4), [&](nn::Module& net, const data::Batch& part) {
                return penalty(net, part.x.detach().clone().requires_grad_(), part);
              });
            }),
            "");
  data::Batch batch = make_batch(4);
  batch.tensors["shift"] = zeros({4, kFeatures}).requires_grad_();
  TrainingStep outside(given);
  EXPECT_EQ(log_of([&] {
              outside(batch, [&](nn::Module& net, const data::Batch& part) {
                return penalty(net, part.x + part["shift"], part);
              });
            }),
            "");
  EXPECT_TRUE(batch["shift"].grad().defined());
}

}  // namespace
}  // namespace lockstep::distributed
