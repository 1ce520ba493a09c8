// Modules that are each rank's own, TrainingStepOptions::ignored_modules: a mixture whose experts lie on different
// ranks trains as the one process does that holds all of them.

#include "lockstep/autograd/backward.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/recorded_collectives.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

constexpr int kExperts = 2;
const TrainingStepOptions kOwnExpert{.ignored_modules = {"expert"}};

// A row goes to the expert that the sign of its first feature chooses.
std::vector<std::vector<std::int64_t>> rows_by_expert(const Tensor& x) {
  std::vector<std::vector<std::int64_t>> rows(kExperts);
  const std::vector<double> first = x.select(1, 0).to_vector<double>();
  for (std::size_t i = 0; i < first.size(); ++i) rows[first[i] > 0.0 ? 1 : 0].push_back(static_cast<std::int64_t>(i));
  return rows;
}

struct Expert : nn::Module {
  Expert(nn::Module* parent, std::string_view name, int index) : nn::Module(parent, name), hidden(4 + index) {}
  std::int64_t hidden;  // so that the ranks' modules differ in their sizes
  nn::Linear fc1{this, "fc1", 5, hidden};
  nn::Linear fc2{this, "fc2", hidden, kClasses};
  Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
};

// All experts here.
struct WholeMixture : nn::Module {
  nn::Linear dense{this, "dense", kFeatures, 5};
  Expert expert0{this, "expert0", 0}, expert1{this, "expert1", 1};
  Tensor forward(Tensor x) override {
    const Tensor hidden = relu(dense(x));
    return where((x.select(1, 0) > 0.0).reshape({-1, 1}), expert1(hidden), expert0(hidden));
  }
};

// One of them here, the other on the other rank.
struct Mixture : nn::Module {
  explicit Mixture(const ProcessGroupPtr& ranks) : group(ranks->split(0)), expert(this, "expert", ranks->rank()) {}
  ProcessGroupPtr group;
  nn::Linear dense{this, "dense", kFeatures, 5};
  Expert expert;

  Tensor forward(Tensor x) override {
    std::vector<std::int64_t> order, back(static_cast<std::size_t>(x.size(0))), sent;
    for (const auto& rows : rows_by_expert(x)) {
      for (const std::int64_t row : rows) {
        back[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(order.size());
        order.push_back(row);
      }
      sent.push_back(static_cast<std::int64_t>(rows.size()));
    }
    const Tensor counts = empty({kExperts * kExperts}, {.dtype = kInt64});
    group->all_gather(counts, tensor(sent))->wait();
    const std::vector<std::int64_t> all = counts.to_vector<std::int64_t>();
    std::vector<std::int64_t> received;
    for (int r = 0; r < kExperts; ++r) received.push_back(all[static_cast<std::size_t>(r * kExperts + group->rank())]);
    const Tensor there = relu(dense(x)).index_select(0, tensor(order));
    const Tensor out = expert(functional::all_to_all(there, received, sent, group));
    return functional::all_to_all(out, sent, received, group).index_select(0, tensor(back));
  }
};

void copy_expert(const Expert& from, const Expert& to) {
  for (std::size_t p = 0; p < from.parameters().size(); ++p) copy_values(from.parameters()[p], to.parameters()[p]);
}

// A mixture that begins as the whole one does.
struct Pair {
  explicit Pair(const ProcessGroupPtr& group)
      : mixture(group), same(group->rank() == 0 ? whole.expert0 : whole.expert1) {
    set_weights(whole);
    set_weights(mixture.dense);
    copy_expert(same, mixture.expert);
  }
  WholeMixture whole;
  Mixture mixture;
  const Expert& same;  // of the whole one, as the mixture's
};

Values of_expert(const nn::Module& dense, const nn::Module& expert, bool gradients) {
  Values all = gradients ? gradients_of(dense) : weights_of(dense);
  for (const auto& each : gradients ? gradients_of(expert) : weights_of(expert)) all.push_back(each);
  return all;
}

TEST(IgnoredModules, AMixtureTrainsAsInOneProcess) {
  run_on({kExperts, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Pair pair(group);
    auto& [here, mixture, same] = pair;
    TrainingStepOptions options = kOwnExpert;
    options.accumulate = 2;
    DistributedDataParallel ddp(mixture, group, options);
    EXPECT_EQ(largest_difference(weights_of(mixture.expert), weights_of(same)), 0.0) << "was broadcast";
    optim::SGD optimizer(mixture.parameters(), {.lr = 0.2, .momentum = 0.9});
    optim::SGD alone(here.parameters(), {.lr = 0.2, .momentum = 0.9});
    for (std::uint32_t step = 0; step < 3; ++step) {
      const data::Batch batch = make_batch(8, step + 1);
      const Tensor loss = ddp.step(batch, mean_loss);
      here.zero_grad();
      const Tensor expected = mean_loss(here, batch);
      expected.backward();
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
      EXPECT_LT(largest_difference(of_expert(mixture.dense, mixture.expert, true), of_expert(here.dense, same, true)),
                1e-6);
      optimizer.step();
      alone.step();
      EXPECT_LT(largest_difference(of_expert(mixture.dense, mixture.expert, false), of_expert(here.dense, same, false)),
                1e-5);
    }
  });
}

TEST(IgnoredModules, InPyTorchsIdiomHaveTheGradientsOfTheSum) {
  run_on({kExperts, Link::gloo}, [&](const ProcessGroupPtr& group) {
    Pair pair(group);
    auto& [here, mixture, same] = pair;
    DistributedDataParallel ddp(mixture, group, kOwnExpert);
    const data::Batch batch = make_batch(8), part = part_of(batch, group->rank() * 4, 4);
    cross_entropy(ddp(part.x), part.y).backward();
    mean_loss(here, batch).backward();
    EXPECT_LT(largest_difference(gradients_of(mixture.dense), gradients_of(here.dense)), 1e-6);
    for (const Tensor& parameter : same.parameters()) parameter.grad().mul_(kExperts);
    EXPECT_LT(largest_difference(gradients_of(mixture.expert), gradients_of(same)), 1e-6);
  });
}

TEST(IgnoredModules, AreRefusedWhereTheyCannotBe) {
  run_on({kExperts, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Mixture mixture(group);
    const auto refusal = [&](TrainingStepOptions options) {
      return error_of([&] { TrainingStep step(mixture, options); });
    };
    const std::vector<std::pair<TrainingStepOptions, const char*>> refused{
        {{.ignored_modules = {"expert"}}, "without a job or group"},
        {{.group = group, .logical_shards = 2, .ignored_modules = {"expert"}}, "in lockstep mode"},
        {{.group = group, .zero = 2, .ignored_modules = {"expert"}}, "zero divides every parameter"},
        {{.group = group, .ignored_modules = {"experts"}}, "has no such module; expected names such as 'dense'"},
        {{.group = group, .ignored_modules = {"dense", "expert"}}, "no other parameter that requires gradients"},
    };
    for (const auto& [options, sentence] : refused)
      EXPECT_NE(refusal(options).find(sentence), std::string::npos) << refusal(options);
  });
}

// One norm, or one checkpoint, for what ranks share and for what is each rank's own.
TEST(IgnoredModules, AreNeitherClippedNorSavedWithWhatIsShared) {
  run_on({kExperts, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Mixture mixture(group);
    DistributedDataParallel ddp(mixture, group, kOwnExpert);
    optim::SGD optimizer(mixture.parameters(), {.lr = 0.2});
    const data::Batch part = part_of(make_batch(8), group->rank() * 4, 4);
    cross_entropy(ddp(part.x), part.y).backward();
    const Values before = gradients_of(mixture);
    const std::string clipping = error_of([&] { optimizer.clip_grad_norm_(1e-3); });
    EXPECT_NE(clipping.find("ignored_modules"), std::string::npos) << clipping;
    EXPECT_EQ(largest_difference(gradients_of(mixture), before), 0.0);
    EXPECT_GT(double{optim::clip_grad_norm_(mixture.expert.parameters(), 1e-3)}, 0.0);
    EXPECT_GT(double{optim::clip_grad_norm_(mixture.dense.parameters(), 1e-3)}, 0.0);
    for (const std::string& error :
         {error_of([&] { save_checkpoint("not_written", mixture, optimizer, {.step = 1}, *group); }),
          error_of([&] { load_checkpoint("not_read", mixture, optimizer, *group); })})
      EXPECT_NE(error.find("each rank's own (ignored_modules)"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace lockstep::distributed
