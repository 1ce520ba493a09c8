#include "lockstep/distributed/parallel/reduction/power_sgd.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

// Wide enough for low rank to mean something.
struct Wide : nn::Module {
  nn::Linear fc1{this, "fc1", kFeatures, 24};
  nn::Linear fc2{this, "fc2", 24, 16};
  nn::Linear fc3{this, "fc3", 16, kClasses};
  Tensor forward(Tensor x) override { return fc3(relu(fc2(relu(fc1(x))))); }
};

struct Trained {
  Values weights;
  std::vector<double> losses;
};

Trained train(const ProcessGroupPtr& group, const CommunicationHookPtr& hook, int steps, DType dtype = kFloat32) {
  Wide net;
  set_weights(net);
  net.to(dtype);
  optim::SGD optimizer(net.parameters(), {.lr = 0.2, .momentum = 0.9});
  DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 512, .bucket_bytes = 2048, .hook = hook});
  Trained run;
  for (int step = 0; step < steps; ++step) {
    data::Batch batch = make_batch(29, static_cast<std::uint32_t>(step % 4 + 1));
    batch.x = cast_values(batch.x, dtype);
    run.losses.push_back(ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); }).item<double>());
    optimizer.step();
  }
  run.weights = weights_of(net);
  return run;
}

class PowerSgdOver : public ::testing::TestWithParam<World> {};

// Everything in the algorithm is linear in the gradient, so ranks together make the approximation that one process
// makes of the whole batch. In float64; the bound covers sums
// in another order, over 20 steps. (At higher ranks a direction that a gradient hardly has is decided by rounding.)
TEST_P(PowerSgdOver, EqualsOneProcessWithTheSameCompression) {
  const PowerSgdOptions options{.rank = 1, .start_iteration = 3, .min_compression = 1.0};
  const Trained expected = train(make_single_process_group(), power_sgd(options), 20, kFloat64);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    EXPECT_LE(largest_difference(train(group, power_sgd(options), 20, kFloat64).weights, expected.weights), 1e-9);
  });
}

TEST_P(PowerSgdOver, IsOffBeforeItsFirstIterationAndExactAtFullRank) {
  const Trained plain = train(make_single_process_group(), nullptr, 10);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    const Trained off = train(group, power_sgd({.start_iteration = 10}), 10);
    EXPECT_EQ(off.weights, train(group, nullptr, 10).weights);
    EXPECT_LE(largest_difference(off.weights, plain.weights), 1e-5);
    const Trained whole = train(group, power_sgd({.rank = 100, .start_iteration = 0, .min_compression = 0.0}), 10);
    EXPECT_LE(largest_difference(whole.weights, plain.weights), 1e-4);
    // At rank 1 something is left out: the comparison can fail.
    const Trained one = train(group, power_sgd({.rank = 1, .start_iteration = 0}), 10);
    EXPECT_GT(largest_difference(one.weights, plain.weights), 1e-3);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, PowerSgdOver, all_worlds(), world_name);

TEST(PowerSgd, SendsLessThanTheGradients) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const auto elements = [&](const CommunicationHookPtr& hook) {
      const std::size_t before = group->records().size();
      train(group, hook, 1);
      std::int64_t sum = 0;
      const auto records = group->records();
      for (std::size_t i = before; i < records.size(); ++i)
        if (records[i].operation.kind == OperationKind::all_reduce)
          sum += std::accumulate(records[i].input_sizes.begin(), records[i].input_sizes.end(), std::int64_t{1},
                                 std::multiplies<>());
      return sum;
    };
    const std::int64_t plain =
        elements(nullptr);  // 619 gradients, one more to 16 bytes, the use of 6 parameters and 3 totals
    EXPECT_EQ(plain, 629);
    // fc1 1 x (24 + 6), fc2 1 x (16 + 24), fc3 1 x (3 + 16), 43 biases, use and totals.
    EXPECT_EQ(elements(power_sgd({.rank = 1, .start_iteration = 0})), 30 + 40 + 19 + 43 + 6 + 3);
  });
}

/// A bucket of one matrix [8, 12] and one vector [5].
struct OneBucket {
  Tensor flat = zeros({101});
  GradientBucket bucket;
  ProcessGroupPtr group = make_single_process_group();

  OneBucket() {
    bucket.count = 1;
    bucket.flat = flat;
    bucket.gradients = {{"m", flat.as_strided({8, 12}, {12, 1}, 0)}, {"v", flat.as_strided({5}, {1}, 96)}};
  }
  std::vector<double> reduce(CommunicationHook& hook, const Tensor& gradient) {
    copy_values(gradient, flat);
    hook.reduce(bucket, *group)->wait();
    return flat.to_vector<double>();
  }
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// With error feedback nothing is lost: the sum of what comes out of T steps is T times the gradient, less an error that
// does not grow, so that the mean goes to the gradient as 1 / T. Without it the mean stays as far off as one step.
TEST(PowerSgd, ErrorFeedbackBringsEverythingInTheEnd) {
  const Tensor gradient = make_input({101}, 5, kFloat32);
  const auto want = gradient.to_vector<double>();
  const auto mean_distance = [&](bool feedback, int steps) {
    OneBucket one;
    const auto hook = power_sgd({.rank = 1, .start_iteration = 0, .error_feedback = feedback});
    std::vector<double> mean(want.size(), 0.0);
    for (int t = 0; t < steps; ++t) {
      const auto out = one.reduce(*hook, gradient);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += out[i] / steps;
    }
    return distance(mean, want);
  };
  const double first = mean_distance(true, 1);
  EXPECT_GT(first, 0.5);
  EXPECT_LT(mean_distance(true, 400), 0.1 * first);
  EXPECT_GT(mean_distance(false, 400), 0.5 * first);
}

TEST(PowerSgd, WarmStartFindsTheBestApproximation) {
  // Rank 2 plus a little noise: subspace iteration over the steps finds the two directions.
  const NoGradGuard no_grad;
  const Tensor gradient = zeros({101});
  const Tensor low = make_input({8, 2}, 1, kFloat32).matmul(make_input({2, 12}, 2, kFloat32));
  copy_values(add(low, mul(make_input({8, 12}, 3, kFloat32), 1e-3)), gradient.as_strided({8, 12}, {12, 1}, 0));
  const auto want = gradient.to_vector<double>();
  OneBucket one;
  const auto hook = power_sgd({.rank = 2, .start_iteration = 0, .min_compression = 0, .error_feedback = false});
  std::vector<double> out;
  for (int t = 0; t < 10; ++t) out = one.reduce(*hook, gradient);
  EXPECT_LT(distance(out, want), 1e-3 * std::sqrt(96.0));
}

TEST(PowerSgd, RecoversFromAGradientOfZero) {
  OneBucket one;
  const auto hook = power_sgd({.rank = 2, .start_iteration = 0, .min_compression = 0});
  for (int t = 0; t < 3; ++t)
    for (const double value : one.reduce(*hook, zeros({101}))) EXPECT_EQ(value, 0.0);
  const Tensor gradient = make_input({101}, 5, kFloat32);
  std::vector<double> sum(101, 0.0);
  for (int t = 0; t < 50; ++t) {
    const auto out = one.reduce(*hook, gradient);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += out[i] / 50;
  }
  EXPECT_LT(distance(sum, gradient.to_vector<double>()), 1.0);
}

TEST(PowerSgd, ANaNIsNotHidden) {
  OneBucket one;
  const auto hook = power_sgd({.rank = 1, .start_iteration = 0});
  const Tensor gradient = ones({101});
  fill_values(rows(gradient, 3, 1), std::nan(""));
  double sum = 0.0;
  for (const double value : one.reduce(*hook, gradient)) sum += value;
  EXPECT_TRUE(std::isnan(sum));
}

// The mean of `steps` results for the same gradient, which comes multiplied by scale(step) and leaves divided by it.
std::vector<double> mean_result(CommunicationHook& hook, const Tensor& gradient, int steps,
                                const std::function<double(int)>& scale) {
  const NoGradGuard no_grad;
  OneBucket one;
  std::vector<double> mean(101, 0.0);
  for (int t = 0; t < steps; ++t) {
    const auto out = one.reduce(hook, mul(gradient, scale(t)));
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += out[i] / scale(t) / steps;
  }
  return mean;
}

TEST(PowerSgd, ForgetsAGradientThatIsNotFinite) {
  const Tensor gradient = make_input({101}, 5, kFloat32);
  const auto want = gradient.to_vector<double>();
  for (const std::int64_t where : {3, 99})  // in the matrix, in the vector
    for (const double value : {std::nan(""), HUGE_VAL})
      for (const bool warm : {true, false}) {
        const auto hook = power_sgd({.rank = 1, .start_iteration = 0, .warm_start = warm});
        mean_result(*hook, gradient, 3, [](int) { return 1.0; });
        OneBucket one;
        const Tensor bad = gradient.clone();
        fill_values(rows(bad, where, 1), value);
        bool hidden = true;
        for (const double each : one.reduce(*hook, bad)) hidden = hidden && std::isfinite(each);
        EXPECT_FALSE(hidden);
        const double off = distance(mean_result(*hook, gradient, 400, [](int) { return 1.0; }), want);
        EXPECT_LT(off, 0.1) << "a value of " << value << " at " << where;
      }
}

TEST(PowerSgd, KeepsItsErrorInTheUnitsOfTheLoss) {
  const Tensor gradient = make_input({101}, 5, kFloat32);
  const auto want = gradient.to_vector<double>();
  double scale = 1.0;
  const auto hook = power_sgd({.rank = 1, .start_iteration = 0, .loss_scale = [&] { return scale; }});
  // A scale that shrinks by half every tenth step, as GradScaler's does after overflows.
  const auto mean = mean_result(*hook, gradient, 200, [&](int t) { return scale = std::ldexp(1.0, 20 - t / 10); });
  const auto steady = power_sgd({.rank = 1, .start_iteration = 0});
  const auto expected = mean_result(*steady, gradient, 200, [](int) { return 1.0; });
  EXPECT_LT(distance(mean, expected), 1e-4);
  EXPECT_LT(distance(mean, want), 0.2);
  scale = 0.0;
  OneBucket one;
  EXPECT_NE(error_of([&] { one.reduce(*hook, gradient); }).find("the loss scale is 0"), std::string::npos);
}

TEST(PowerSgd, RefusesOptionsOutOfRange) {
  EXPECT_NE(error_of([] { power_sgd({.rank = 0}); }).find("rank is 0"), std::string::npos);
  EXPECT_NE(error_of([] { power_sgd({.start_iteration = -1}); }).find("start_iteration is -1"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
