// Batch norm over the ranks, against one process that normalises the whole batch.

#include "lockstep/distributed/parallel/sync_batch_norm.h"

#include "lockstep/data/partition.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/step.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::make_leaf;

/// What a pass over a part gives: outputs and input gradients by row, gradients of weight and bias, running statistics.
struct Pass {
  std::vector<double> out, grad_input, grad_weight, grad_bias, running_mean, running_var;
};

using Normalise = std::function<Tensor(const Tensor& x, const Tensor& mean, const Tensor& var, BatchNormOptions)>;

// The loss is sum(out * seed), so that every element has a gradient of its own.
Pass pass_over(const Tensor& x, const Tensor& seed, bool affine, const Normalise& normalise) {
  const DType dtype = x.dtype();
  const std::int64_t channels = x.size(1);
  const Tensor leaf = x.clone();
  leaf.set_requires_grad(true);
  BatchNormOptions options{.training = true, .momentum = 0.3};
  if (affine) {
    options.weight = make_leaf({channels}, 21, dtype);
    options.bias = make_leaf({channels}, 22, dtype);
  }
  const Tensor mean = make_input({channels}, 23, dtype);
  const Tensor var = make_input({channels}, 24, dtype, 0.5, 1.5);
  const Tensor out = normalise(leaf, mean, var, options);
  mul(out, seed).sum().backward();
  Pass pass{out.to_vector<double>(),  leaf.grad().to_vector<double>(), {}, {},
            mean.to_vector<double>(), var.to_vector<double>()};
  if (affine) {
    pass.grad_weight = options.weight.grad().to_vector<double>();
    pass.grad_bias = options.bias.grad().to_vector<double>();
  }
  return pass;
}

std::vector<double> part(const std::vector<double>& values, std::int64_t rows_in_all, std::int64_t begin,
                         std::int64_t size) {
  const auto row = static_cast<std::int64_t>(values.size()) / rows_in_all;
  return {values.begin() + begin * row, values.begin() + (begin + size) * row};
}

std::vector<double> sum_over_ranks(std::vector<double> values, ProcessGroup& group) {
  const Tensor sum = tensor(values);
  group.all_reduce(sum)->wait();
  return sum.to_vector<double>();
}

class SyncBatchNormOver : public ::testing::TestWithParam<World> {};

// Shares of the batch by rank; a world takes as many as it has ranks, and the last takes the rest.
constexpr std::int64_t kShares[][3] = {{3, 4, 2}, {5, 0, 1}, {0, 8, 0}, {1, 1, 1}};

TEST_P(SyncBatchNormOver, EqualsBatchNormOfTheWholeBatchHoweverItIsDivided) {
  constexpr std::int64_t kRows = 11;
  for (const DType dtype : {kFloat64, kFloat32}) {
    const double bound = dtype == kFloat64 ? 1e-12 : 5e-6;  // of values up to 10
    for (const Shape& shape : {Shape{kRows, 3}, Shape{kRows, 2, 3, 2}})
      for (const bool affine : {true, false}) {
        const Tensor x = make_input(shape, 11, dtype, -2.0, 5.0);
        const Tensor seed = make_input(shape, 12, dtype);
        const Pass whole =
            pass_over(x, seed, affine, [](const Tensor& in, const Tensor& mean, const Tensor& var, BatchNormOptions o) {
              return batch_norm(in, mean, var, o);
            });
        for (const auto& shares : kShares)
          run_on(GetParam(), [&](const ProcessGroupPtr& group) {
            std::int64_t begin = 0;
            for (int r = 0; r < group->rank(); ++r) begin += shares[r];
            const bool last = group->rank() + 1 == group->world_size();
            const std::int64_t size = last ? kRows - begin : shares[group->rank()];
            const Pass mine = pass_over(rows(x, begin, size), rows(seed, begin, size), affine,
                                        [&](const Tensor& in, const Tensor& mean, const Tensor& var,
                                            BatchNormOptions o) { return sync_batch_norm(in, mean, var, o, *group); });
            const auto close = [&](const std::vector<double>& a, const std::vector<double>& b, const char* what) {
              EXPECT_LE(largest_difference({a}, {b}), bound) << what;
            };
            close(mine.out, part(whole.out, kRows, begin, size), "output");
            close(mine.grad_input, part(whole.grad_input, kRows, begin, size), "gradient of the input");
            close(mine.running_mean, whole.running_mean, "running mean");
            close(mine.running_var, whole.running_var, "running variance");
            if (!affine) return;
            close(sum_over_ranks(mine.grad_weight, *group), whole.grad_weight, "gradient of the weight");
            close(sum_over_ranks(mine.grad_bias, *group), whole.grad_bias, "gradient of the bias");
          });
      }
  }
}

struct NormNet : nn::Module {
  nn::Linear fc1{this, "fc1", kFeatures, 5};
  nn::BatchNorm1d norm{this, "norm", 5};
  nn::Linear fc2{this, "fc2", 5, kClasses};
  Tensor forward(Tensor x) override { return fc2(relu(norm(fc1(x)))); }
};

struct Trained {
  Values weights;
  std::vector<double> buffers;
  std::vector<double> losses;
};

// The last sizes leave ranks without a sample.
const std::vector<std::int64_t> kAllSizes{13, 8, 3, 2};

Trained train(const ProcessGroupPtr& group, bool synchronised, const std::vector<std::int64_t>& sizes,
              std::int64_t accumulate = 1) {
  NormNet net;
  set_weights(net);
  if (synchronised) {
    EXPECT_EQ(convert_sync_batch_norm(net, group), 1);
  }
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  DistributedDataParallel ddp(net, group, {.accumulate = accumulate, .first_bucket_bytes = 32, .bucket_bytes = 64});
  Trained run;
  for (const std::int64_t n : sizes) {
    const data::Batch batch = make_batch(n, static_cast<std::uint32_t>(n));
    run.losses.push_back(ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); }).item<double>());
    optimizer.step();
  }
  run.weights = weights_of(net);
  for (const Tensor& buffer : net.buffers())
    for (const double value : buffer.to_vector<double>()) run.buffers.push_back(value);
  return run;
}

TEST_P(SyncBatchNormOver, TrainsAsOneProcessDoes) {
  constexpr double kBound = 1e-5;  // of weights up to 0.5, after 4 steps in float32
  const Trained one = train(make_single_process_group(), false, kAllSizes);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    const Trained run = train(group, true, kAllSizes);
    EXPECT_LE(largest_difference(run.weights, one.weights), kBound);
    EXPECT_LE(largest_difference({run.buffers}, {one.buffers}), kBound);
    EXPECT_LE(largest_difference({run.losses}, {one.losses}), kBound);
    if (group->world_size() == 1) return;
    // Statistics by rank make another model: the comparison can fail.
    const Values even = train(make_single_process_group(), false, {13, 8}).weights;
    EXPECT_LE(largest_difference(train(group, true, {13, 8}).weights, even), kBound);
    EXPECT_GT(largest_difference(train(group, false, {13, 8}).weights, even), 100 * kBound);
  });
}

TEST_P(SyncBatchNormOver, RanksWithFewerSamplesThanSlicesTakePart) {
  // Slice i of all ranks is normalised together: all must come to it.
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    const Trained run = train(group, true, {13, 8, 6}, 2);
    const Tensor first = tensor(run.buffers);
    group->broadcast(first, 0)->wait();
    EXPECT_EQ(run.buffers, first.to_vector<double>());  // equal bits on all ranks
    for (const double loss : run.losses) EXPECT_TRUE(std::isfinite(loss));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SyncBatchNormOver, all_worlds(), world_name);

TEST(SyncBatchNorm, ConvertsEveryLayerAndBack) {
  const ProcessGroupPtr group = make_single_process_group();
  NormNet net;
  set_weights(net);
  EXPECT_EQ(first_sync_batch_norm(net), "");
  const Tensor x = make_batch(8).x;
  net.eval();
  const auto before = net(x).to_vector<float>();
  EXPECT_EQ(convert_sync_batch_norm(net, group), 1);
  EXPECT_EQ(first_sync_batch_norm(net), "norm");
  EXPECT_EQ(net(x).to_vector<float>(), before);
  revert_sync_batch_norm(net);
  EXPECT_EQ(first_sync_batch_norm(net), "");
  EXPECT_EQ(error_of([&] { convert_sync_batch_norm(net, nullptr); }),
            "[convert_sync_batch_norm] the process group is null");
}

TEST(SyncBatchNorm, RefusesOneValuePerChannelOverAllRanks) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const Tensor x = zeros({group->rank() == 0 ? 1 : 0, 3});
    const std::string error = error_of([&] { sync_batch_norm(x, {}, {}, {.training = true}, *group); });
    EXPECT_NE(error.find("more than one value per channel over all ranks"), std::string::npos) << error;
  });
  EXPECT_NE(error_of([&] {
              sync_batch_norm(zeros({4, 3}), {}, {}, {}, *make_single_process_group());
            }).find("is for training"),
            std::string::npos);
}

TEST(SyncBatchNorm, IsRefusedByNameInLockstepMode) {
  const ProcessGroupPtr group = make_single_process_group();
  NormNet net;
  convert_sync_batch_norm(net, group);
  const auto named = [](const std::string& error) {
    return error.find("layer 'norm' is a synchronised batch norm") != std::string::npos;
  };
  EXPECT_TRUE(named(error_of([&] { DistributedDataParallel(net, group, {.logical_shards = 4}); })));
  EXPECT_TRUE(named(error_of([&] {
    TrainingStep(
        [&] {
          auto made = std::make_unique<NormNet>();
          convert_sync_batch_norm(*made, group);
          return made;
        },
        {.logical_shards = 4});
  })));
  // Converted behind the step's back.
  NormNet late;
  DistributedDataParallel ddp(late, group, {.logical_shards = 4});
  convert_sync_batch_norm(late, group);
  const std::string error =
      error_of([&] { ddp.step(make_batch(8), [&](const data::Batch& part) { return mean_loss(late, part); }); });
  EXPECT_NE(error.find("leave out convert_sync_batch_norm() or logical_shards"), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep::distributed
