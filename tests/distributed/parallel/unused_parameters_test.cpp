// Models whose ranks use different parameters, against one process that does what all of them do.

#include <string>

#include "lockstep/data/partition.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/reduction/power_sgd.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

constexpr double kBound = 1e-5;  // of weights up to 0.6, after 6 steps in float32

/// A trunk and three branches; which one a part takes is up to its first label and the step. `spare` is never used.
struct Branches : nn::Module {
  nn::Linear trunk{this, "trunk", kFeatures, 5};
  nn::Linear a{this, "a", 5, kClasses};
  nn::Linear b{this, "b", 5, kClasses};
  nn::Linear c{this, "c", 5, kClasses};
  nn::Linear spare{this, "spare", 5, kClasses};

  Tensor loss(const data::Batch& part, std::int64_t step) {
    const std::int64_t branch = (part.y.to_vector<std::int64_t>().front() + step) % 3;
    nn::Linear& head = branch == 0 ? a : branch == 1 ? b : c;
    return cross_entropy(head(relu(trunk(part.x))), part.y);
  }
};

// SGD's momentum and decay move whatever has a gradient, be it zero.
optim::SGDOptions sgd() {
  return {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};
}

data::Batch batch_of(std::int64_t step) {
  return make_batch(9 + step % 2, static_cast<std::uint32_t>(step + 1));
}

Values train_alone(int world, std::int64_t steps) {
  Branches net;
  set_weights(net);
  optim::SGD optimizer(net.parameters(), sgd());
  for (std::int64_t step = 0; step < steps; ++step) {
    const data::Batch batch = batch_of(step);
    net.zero_grad(/*set_to_none=*/true);
    for (int rank = 0; rank < world; ++rank) {
      const data::Range range = data::partition(batch.size(), world, rank);
      const double share = static_cast<double>(range.size()) / static_cast<double>(batch.size());
      mul(net.loss(part_of(batch, range.begin, range.size()), step), share).backward();
    }
    optimizer.step();
  }
  return weights_of(net);
}

class UnusedParametersOver : public ::testing::TestWithParam<World> {};

TEST_P(UnusedParametersOver, TrainAsInOneProcess) {
  const Values one = train_alone(std::get<0>(GetParam()), 6);
  for (const bool hook : {false, true})
    run_on(GetParam(), [&](const ProcessGroupPtr& group) {
      Branches net;
      set_weights(net);
      optim::SGD optimizer(net.parameters(), sgd());
      // A hook that is off so far changes nothing but the way.
      DistributedDataParallel ddp(
          net, group,
          {.first_bucket_bytes = 32, .bucket_bytes = 64, .hook = hook ? power_sgd({.start_iteration = 100}) : nullptr});
      for (std::int64_t step = 0; step < 6; ++step) {
        ddp.step(batch_of(step), [&](const data::Batch& part) { return net.loss(part, step); });
        optimizer.step();
        const auto here = ddp.unused_parameters();
        EXPECT_EQ(here.size(), 6u);  // two branches and the spare one
        EXPECT_EQ(std::count(here.begin(), here.end(), "spare.weight"), 1);
        const auto everywhere = ddp.unused_everywhere();
        EXPECT_GE(everywhere.size(), 2u);
        EXPECT_LE(everywhere.size(), 6u);
      }
      EXPECT_LE(largest_difference(weights_of(net), one), kBound);
    });
}

// A zero gradient instead of none would be seen: decay and momentum go on.
TEST(UnusedParameters, AZeroGradientWouldShow) {
  const auto train = [](bool zeros_instead) {
    Branches net;
    set_weights(net);
    optim::SGD optimizer(net.parameters(), sgd());
    for (std::int64_t step = 0; step < 6; ++step) {
      net.zero_grad(true);
      net.loss(batch_of(step), step).backward();
      if (zeros_instead)
        for (const Tensor& parameter : net.parameters())
          if (!parameter.grad().defined()) parameter.set_grad(zeros_like(parameter));
      optimizer.step();
    }
    return weights_of(net);
  };
  EXPECT_GT(largest_difference(train(true), train(false)), 100 * kBound);
}

TEST_P(UnusedParametersOver, AStaticGraphTrainsTheSame) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    const auto train = [&](bool static_graph) {
      Branches net;
      set_weights(net);
      optim::SGD optimizer(net.parameters(), sgd());
      DistributedDataParallel ddp(net, group,
                                  {.static_graph = static_graph, .first_bucket_bytes = 32, .bucket_bytes = 64});
      for (std::int64_t step = 0; step < 4; ++step) {
        // Each rank its own branch, in every step the same.
        nn::Linear& head = group->rank() % 2 == 0 ? net.a : net.b;
        ddp.step(make_batch(8, static_cast<std::uint32_t>(step + 1)),
                 [&](const data::Batch& part) { return cross_entropy(head(relu(net.trunk(part.x))), part.y); });
        optimizer.step();
      }
      return weights_of(net);
    };
    EXPECT_EQ(train(true), train(false));
  });
}

// Also in lockstep mode, where decay and momentum would move what no shard used.
TEST_P(UnusedParametersOver, AreNamedAndLeftAloneInLockstepMode) {
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Branches net;
    set_weights(net);
    const Values before = weights_of(net);
    optim::SGD optimizer(net.parameters(), sgd());
    DistributedDataParallel ddp(net, group, {.logical_shards = 4});
    for (std::int64_t step = 0; step < 2; ++step) {
      // The last shard alone uses b; nobody c.
      ddp.step(make_batch(8), [&](const data::Batch& part) {
        nn::Linear& head = part.x.to_vector<float>() == rows(make_batch(8).x, 6, 2).to_vector<float>() ? net.b : net.a;
        return cross_entropy(head(relu(net.trunk(part.x))), part.y);
      });
      optimizer.step();
      EXPECT_EQ(ddp.unused_everywhere(),
                (std::vector<std::string>{"c.weight", "c.bias", "spare.weight", "spare.bias"}));
      EXPECT_FALSE(net.c.weight.grad().defined());
    }
    const Values after = weights_of(net);
    for (const std::size_t p : {6, 7, 8, 9}) EXPECT_EQ(after[p], before[p]);
    for (const std::size_t p : {0, 2, 4}) EXPECT_NE(after[p], before[p]);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, UnusedParametersOver, all_worlds(), world_name);

/// Of names that no other model of this process has.
struct OneOfAKind : nn::Module {
  static inline int count = 0;
  const std::string number = std::to_string(count++);
  nn::Linear used{this, "used" + number, kFeatures, kClasses};
  nn::Linear spare{this, "spare" + number, kFeatures, kClasses};
};

// Programs that make their step anew, for each epoch, say, need not be told each time.
TEST(UnusedParameters, AreNamedOnStderrOnceForAModel) {
  for (const std::int64_t shards : {0, 2})
    for (const bool devices : {false, true}) {
      OneOfAKind net;
      const auto loss = [&](nn::Module&, const data::Batch& part) { return cross_entropy(net.used(part.x), part.y); };
      const auto make_steps = [&] {
        ::testing::internal::CaptureStderr();
        for (int made = 0; made < 2; ++made) {
          const auto group = devices ? nullptr : make_single_process_group();
          TrainingStep step(net, {.group = group, .logical_shards = shards});
          for (int i = 0; i < 2; ++i) step(make_batch(4), loss);
        }
        return ::testing::internal::GetCapturedStderr();
      };
      const std::string said = make_steps();
      if (devices && shards == 0) continue;  // one device needs no reduction that would find them
      EXPECT_NE(said.find("no rank used 2 of 4 parameters in step "), std::string::npos) << said;
      EXPECT_NE(said.find(": spare" + net.number + ".weight, spare" + net.number + ".bias; "), std::string::npos)
          << said;
      EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    }
}

}  // namespace
}  // namespace lockstep::distributed
