#include "lockstep/distributed/parallel/evaluate.h"

#include <mutex>

#include "lockstep/autograd/grad_mode.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr std::int64_t kSamples = 23;

std::shared_ptr<const data::Dataset> test_set() {
  const data::Batch all = make_batch(kSamples);
  return std::make_shared<data::TensorDataset>(all.x, all.y);
}

struct Dropping : Net {
  nn::Dropout dropout{this, "dropout", 0.5};
  Tensor forward(Tensor x) override { return Net::forward(dropout(x)); }
};

// The loss, right answers, samples, and what was drawn.
std::vector<double> sums_over(nn::Module& net, const data::Batch& batch) {
  EXPECT_FALSE(GradMode::enabled());
  EXPECT_FALSE(net.is_training());
  const Tensor logits = net(batch.x);
  return {cross_entropy(logits, batch.y).item<double>() * static_cast<double>(batch.size()),
          static_cast<double>(eq(logits.argmax(1), batch.y).sum().item<std::int64_t>()),
          static_cast<double>(batch.size()), rand({1}).item<double>()};
}

class EvaluateOver : public ::testing::TestWithParam<World> {};

TEST_P(EvaluateOver, CountsEverySampleOnceWithTheSameBits) {
  for (const std::int64_t batch_size : {4, 10, 100}) {
    Dropping alone;
    set_weights(alone);
    const auto one = evaluate(alone, test_set(), 4, [&](const data::Batch& b) { return sums_over(alone, b); },
                              {.batch_size = batch_size});
    EXPECT_EQ(one[2], kSamples);
    run_on(GetParam(), [&](const ProcessGroupPtr& group) {
      Dropping net;
      set_weights(net);
      for (const bool training : {true, false}) {
        net.train(training);
        const auto sums = evaluate(net, test_set(), 4, [&](const data::Batch& b) { return sums_over(net, b); },
                                   {.batch_size = batch_size, .group = group.get()});
        EXPECT_EQ(sums, one);
        EXPECT_EQ(net.is_training(), training);
        EXPECT_EQ(net.dropout.is_training(), training);
      }
    });
  }
}

// After a step of plain DistributedDataParallel each rank has running statistics of its own.
TEST_P(EvaluateOver, AllRanksEvaluateRank0sModel) {
  struct Normed : Net {
    nn::BatchNorm1d norm{this, "norm", kFeatures};
    Tensor forward(Tensor x) override { return Net::forward(norm(x)); }
  };
  Normed alone;
  set_weights(alone);
  const auto one = evaluate(alone, test_set(), 4, [&](const data::Batch& b) { return sums_over(alone, b); });
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Normed net;
    set_weights(net);
    net.norm.running_mean.fill_(group->rank());
    const auto sums =
        evaluate(net, test_set(), 4, [&](const data::Batch& b) { return sums_over(net, b); }, {.group = group.get()});
    EXPECT_EQ(sums, one);
    EXPECT_EQ(nn::state_sha256(net), nn::state_sha256(alone));
  });
}

// A layer that is frozen by its mode stays so.
TEST(Evaluate, EachLayerGetsItsModeBack) {
  for (const bool fails : {false, true}) {
    Dropping net;
    net.dropout.eval();
    const auto values = [&](const data::Batch& batch) -> std::vector<double> {
      EXPECT_FALSE(net.fc1.is_training());
      if (fails) throw Error("broken off");
      return {static_cast<double>(batch.size())};
    };
    const auto run = [&] {
      if (fails)
        EXPECT_EQ(error_of([&] { evaluate(net, test_set(), 1, values); }), "broken off");
      else
        evaluate(net, test_set(), 1, values);
    };
    run();
    EXPECT_TRUE(net.is_training());
    EXPECT_TRUE(net.fc1.is_training());
    EXPECT_FALSE(net.dropout.is_training());
    net.eval();
    net.fc1.train();
    run();
    EXPECT_FALSE(net.is_training());
    EXPECT_TRUE(net.fc1.is_training());
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, EvaluateOver, all_worlds(), world_name);

TEST(Evaluate, RefusesAnotherNumberOfValues) {
  Net net;
  EXPECT_NE(error_of([&] {
              evaluate(net, test_set(), 2, [](const data::Batch&) { return std::vector<double>{1.0}; });
            }).find("expected 2 values for each batch, found 1"),
            std::string::npos);
  EXPECT_TRUE(net.is_training());
}

}  // namespace
}  // namespace lockstep::distributed
