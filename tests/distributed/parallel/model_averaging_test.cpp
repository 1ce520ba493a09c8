// Local SGD: average_parameters() and PeriodicModelAverager.

#include "lockstep/distributed/parallel/model_averaging.h"

#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/nn/optim/sgd.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

void fill(const nn::Module& module, double value) {
  for (const Tensor& parameter : module.parameters()) parameter.detach().fill_(value);
}

class AveragingOver : public ::testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AveragingOver, all_worlds(), world_name);

TEST_P(AveragingOver, ParametersBecomeTheirMeansAndOthersStay) {
  run_on(GetParam(), [](const ProcessGroupPtr& group) {
    struct Mixed : nn::Module {
      nn::Linear fc{this, "fc", 3, 2};
      nn::BatchNorm1d norm{this, "norm", 2};
      Tensor turned = register_parameter("turned", zeros({5, 4}).transpose(0, 1));  // not contiguous
    } net;
    net.fc.bias.set_requires_grad(false);
    fill(net, group->rank());
    net.norm.running_mean.fill_(group->rank());
    const Tensor graph = mul(net.fc.weight, net.fc.weight).sum();  // has saved the weight
    average_parameters(net, *group);
    const double mean = (group->world_size() - 1) / 2.0;
    for (const auto& [name, parameter] : net.named_parameters())
      for (const double value : parameter.to_vector<double>())
        EXPECT_EQ(value, name == "fc.bias" ? group->rank() : mean) << name;
    EXPECT_EQ(net.norm.running_mean.to_vector<double>(), std::vector<double>(2, group->rank()));
    if (group->world_size() > 1) {
      EXPECT_NE(error_of([&] { graph.backward(); }).find("changed"), std::string::npos);
    }
  });
}

TEST(PeriodicModelAverager, AveragesOverTheLargestGroupWhoseTurnItIs) {
  run_on({4, Link::in_process}, [](const ProcessGroupPtr& group) {
    const ProcessGroupPtr pair = group->split(group->rank() / 2);
    Net net;
    PeriodicModelAverager averager(net, {{pair.get(), 2}, {group.get(), 4}}, /*warmup_steps=*/1);
    std::vector<double> means;
    for (int i = 0; i < 7; ++i) {
      fill(net, group->rank());
      const ProcessGroup* over = averager.step();
      EXPECT_EQ(over, i == 1 || i == 5 ? group.get() : i == 3 ? pair.get() : nullptr);
      means.push_back(net.fc1.weight.to_vector<double>()[0]);
    }
    const double mine = group->rank(), two = mine < 2 ? 0.5 : 2.5;
    EXPECT_EQ(means, (std::vector<double>{mine, 1.5, mine, two, mine, 1.5, mine}));
    EXPECT_EQ(averager.steps(), 7);
    averager.set_steps(5);  // as after a restart
    EXPECT_EQ(averager.step(), group.get());
  });
}

// After every step, averages of weights that SGD has changed are what SGD does with the average of the gradients.
TEST(PeriodicModelAverager, OfEveryStepIsDataParallel) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net local, together;
    set_weights(local);
    set_weights(together);
    DistributedDataParallel ddp(together, group), apart(local, group);
    optim::SGD local_sgd(local.parameters(), {.lr = 0.1}), sgd(together.parameters(), {.lr = 0.1});
    PeriodicModelAverager averager(local, *group, {.period = 1});
    const NoSync alone = apart.no_sync();
    for (std::uint32_t i = 0; i < 3; ++i) {
      const data::Batch batch = make_batch(8, 2 * i + static_cast<std::uint32_t>(group->rank()));
      const auto train = [&](DistributedDataParallel& model, optim::SGD& optimizer) {
        optimizer.zero_grad();
        cross_entropy(model(batch.x), batch.y).backward();
        optimizer.step();
      };
      train(apart, local_sgd);
      averager.step();
      train(ddp, sgd);
    }
    EXPECT_LT(largest_difference(weights_of(local), weights_of(together)), 1e-6);
  });
}

TEST(PeriodicModelAverager, SaysWhatDoesNotFit) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Net net;
    const auto error = [&](const std::function<void()>& f) { return error_of(f); };
    const auto has = [](const std::string& text, std::string_view part) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    has(error([&] { PeriodicModelAverager(net, *group, {.period = 0}); }),
        "expected a period of at least 1 step, found 0");
    has(error([&] { PeriodicModelAverager(net, *group, {.period = 2, .warmup_steps = -1}); }), "found -1");
    has(error([&] { PeriodicModelAverager(net, {{group.get(), 4}, {group.get(), 6}}); }), "found 6 after 4");
    nn::Linear wider(kFeatures, group->rank() + 4);
    has(error([&] { average_parameters(wider, *group); }), "differs from rank 0's");
    DistributedDataParallel ddp(net, group, {.zero = 3});
    has(error([&] { average_parameters(net, *group); }), "zero = 3");
  });
}

}  // namespace
}  // namespace lockstep::distributed
