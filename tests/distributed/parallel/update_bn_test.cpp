// update_bn(): running statistics are the means over a data set's batches, the same bits on any number of ranks.

#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

struct Normed : nn::Module {
  nn::Dropout dropout{this, "dropout", 0.25};
  nn::BatchNorm1d first{this, "first", kFeatures, {.momentum = 0.5}};
  nn::Linear fc{this, "fc", kFeatures, 4};
  nn::BatchNorm1d second{this, "second", 4};
  Tensor forward(Tensor x) override { return second(fc(first(dropout(x)))); }
};

std::shared_ptr<const data::Dataset> samples(std::int64_t n) {
  const data::Batch batch = make_batch(n);
  return std::make_shared<data::TensorDataset>(batch.x, batch.y);
}

void call(nn::Module& module, const data::Batch& batch) {
  module(batch.x);
}

TEST(UpdateBn, GivesTheMeansOverTheBatches) {
  Normed net;
  net.dropout.eval();
  set_weights(net);
  net(make_batch(9, 3).x);  // statistics that must not count
  struct Plain : nn::Module {
    nn::BatchNorm1d norm{this, "norm", kFeatures};
    Tensor forward(Tensor x) override { return norm(x); }
  } plain;
  update_bn(plain, samples(10), [&](const data::Batch& batch) { call(plain, batch); }, {.batch_size = 4});
  const Tensor x = make_batch(10).x;
  std::vector<double> mean(kFeatures, 0.0), var(kFeatures, 0.0);
  for (const auto& [begin, size] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 4}, {8, 2}}) {
    const Tensor part = rows(x, begin, size).to(kFloat64);
    const auto m = part.mean({0}).to_vector<double>(), v = part.var({0}).to_vector<double>();
    for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += m[c] / 3, var[c] += v[c] / 3;
  }
  EXPECT_LT(largest_difference({plain.norm.running_mean.to_vector<double>()}, {mean}), 1e-6);
  EXPECT_LT(largest_difference({plain.norm.running_var.to_vector<double>()}, {var}), 1e-6);
  EXPECT_EQ(plain.norm.num_batches_tracked.item<std::int64_t>(), 3);
  EXPECT_TRUE(plain.is_training());
}

TEST(UpdateBn, HasTheSameBitsOnAnyNumberOfRanks) {
  const auto statistics = [](nn::Module& net, ProcessGroup* group) {
    update_bn(net, samples(302), [&](const data::Batch& batch) { call(net, batch); },
              {.batch_size = 2, .group = group});
    Values all;
    for (const Tensor& buffer : net.buffers()) all.push_back(buffer.to_vector<double>());
    return all;
  };
  Normed alone;
  set_weights(alone);
  alone.eval();
  const Values expected = statistics(alone, nullptr);
  EXPECT_FALSE(alone.is_training() || alone.second.is_training());
  for (const int ranks : {2, 3, 5})
    run_on({ranks, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Normed net;
      set_weights(net);
      EXPECT_EQ(statistics(net, group.get()), expected);
    });
}

TEST(UpdateBn, SaysWhatDoesNotFitAndChangesNothing) {
  Normed net;
  set_weights(net);
  net(make_batch(9, 3).x);
  const auto before = net.second.running_mean.to_vector<double>();
  const auto error = [&](std::int64_t n, const std::function<void(const data::Batch&)>& forward) {
    return error_of([&] { update_bn(net, samples(n), forward, {.batch_size = 4}); });
  };
  const auto whole = [&](const data::Batch& batch) { call(net, batch); };
  EXPECT_NE(error(8, [&](const data::Batch& batch) { net.first(batch.x); }).find("layer of 4 channels"),
            std::string::npos);
  EXPECT_NE(error(9, whole), "") << "the last batch has one sample";
  EXPECT_EQ(net.second.running_mean.to_vector<double>(), before);
  update_bn(net, samples(8), whole, {.batch_size = 4});
  EXPECT_NE(net.second.running_mean.to_vector<double>(), before);
  convert_sync_batch_norm(net, make_single_process_group());
  EXPECT_NE(error(8, whole).find("layer 'first' is a synchronised batch norm"), std::string::npos);
  Net none;
  update_bn(none, samples(8), whole);
}

}  // namespace
}  // namespace lockstep::distributed
