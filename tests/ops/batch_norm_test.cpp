#include "lockstep/autograd/ops/batch_norm/batch_norm.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/batch_norm/batch_norm_parts.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

/// Plain double loops over a contiguous float64 input: mean and biased variance of each channel.
void plain_statistics(const Tensor& x, std::vector<double>& mean, std::vector<double>& var) {
  const std::int64_t channels = x.size(1), inner = x.numel() / (x.size(0) * channels);
  const auto count = static_cast<double>(x.size(0) * inner);
  mean.assign(static_cast<std::size_t>(channels), 0.0);
  var.assign(static_cast<std::size_t>(channels), 0.0);
  const auto channel = [&](std::int64_t i) { return static_cast<std::size_t>(i / inner % channels); };
  for (std::int64_t i = 0; i < x.numel(); ++i) mean[channel(i)] += x.data<double>()[i] / count;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    var[channel(i)] += std::pow(x.data<double>()[i] - mean[channel(i)], 2) / count;
}

class BatchNormShapes : public ::testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormShapes,
                         ::testing::Values(Shape{2, 1}, Shape{5, 3}, Shape{300, 70}, Shape{30000, 2}, Shape{70, 130, 3},
                                           Shape{2, 3, 1, 1}, Shape{1, 2, 2}, Shape{4, 3, 5}, Shape{3, 2, 17, 19},
                                           Shape{40, 2, 30, 30}, Shape{1, 2, 150, 150}, Shape{2, 3, 2, 2, 2}));

TEST_P(BatchNormShapes, TrainingMatchesPlainLoops) {
  const Shape sizes = GetParam();
  const std::int64_t channels = sizes[1], inner = sizes.numel() / (sizes[0] * channels);
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = make_input(sizes, 1, dtype, 2, 5);
    const Tensor weight = make_input({channels}, 2, dtype), bias = make_input({channels}, 3, dtype);
    const Tensor exact_x = cast_values(x, kFloat64), w = cast_values(weight, kFloat64), b = cast_values(bias, kFloat64);
    std::vector<double> mean, var;
    plain_statistics(exact_x, mean, var);
    Tensor expected = empty_like(exact_x);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const std::int64_t c = i / inner % channels;
      const auto k = static_cast<std::size_t>(c);
      expected.data<double>()[i] =
          (exact_x.data<double>()[i] - mean[k]) / std::sqrt(var[k] + 1e-5) * w.data<double>()[c] + b.data<double>()[c];
    }
    const double tolerance = dtype == kFloat64 ? 1e-12 : dtype == kFloat32 ? 1e-5 : dtype == kFloat16 ? 2e-3 : 2e-2;
    ChannelStatistics statistics;
    const BatchNormOptions options{.weight = weight, .bias = bias, .training = true, .statistics = &statistics};
    const Tensor y = batch_norm(x, {}, {}, options);
    EXPECT_EQ(y.dtype(), dtype);
    expect_close(y, expected, tolerance, tolerance);
    const double fine = dtype == kFloat64 ? 1e-12 : 2e-6;
    expect_close(statistics.mean, tensor(mean), fine, fine);
    expect_close(statistics.var, tensor(var), fine * 10, fine);
    EXPECT_EQ(statistics.count, x.numel() / channels);
    expect_close(batch_norm(make_strided(x), {}, {}, options), y, 0, 0);
  }
}

TEST_P(BatchNormShapes, BitsDoNotDependOnTheNumberOfThreads) {
  const Shape sizes = GetParam();
  const std::int64_t channels = sizes[1];
  check_threads({.name = "",
                 .inputs =
                     [=] {
                       return TensorList{make_leaf(sizes, 1), make_leaf({channels}, 2), make_leaf({channels}, 3)};
                     },
                 .run =
                     [=](const TensorList& in) {
                       const Tensor mean = zeros({channels}), var = ones({channels});
                       const Tensor y =
                           batch_norm(in[0], mean, var, {.weight = in[1], .bias = in[2], .training = true});
                       return TensorList{y, mean, var};
                     }});
}

TEST_P(BatchNormShapes, GradientMatchesCentralDifferences) {
  const Shape sizes = GetParam();
  if (sizes.numel() > 200) return;  // the same paths as the smaller ones
  const std::int64_t channels = sizes[1];
  const Tensor mean = make_input({channels}, 5), var = make_input({channels}, 6, kFloat64, 0.5, 2);
  for (const bool training : {true, false})
    for (const bool affine : {true, false}) {
      const auto function = [&](const std::vector<Tensor>& in) {
        BatchNormOptions options{.training = training, .eps = 1e-2};
        if (affine) {
          options.weight = in[1];
          options.bias = in[2];
        }
        return batch_norm(in[0], training ? Tensor() : mean, training ? Tensor() : var, options);
      };
      std::vector<Tensor> inputs{make_leaf(sizes, 1)};
      if (affine) inputs.insert(inputs.end(), {make_leaf({channels}, 2), make_leaf({channels}, 3)});
      gradcheck(function, inputs);
    }
}

TEST(BatchNorm, ALargeMeanCostsNoPrecision) {
  const Tensor x = make_input({64, 2, 8, 8}, 1, kFloat32, 1000, 1001);
  std::vector<double> mean, var;
  plain_statistics(cast_values(x, kFloat64), mean, var);
  expect_close(batch_norm_parts::channel_statistics(x).var, tensor(var), 1e-5, 0);
}

TEST(BatchNorm, HalfInputsTakeFloatParametersAndGiveThemFloatGradients) {
  const Tensor x = make_leaf({8, 3, 4}, 1, kFloat16), w = make_leaf({3}, 2, kFloat32), b = make_leaf({3}, 3, kFloat32);
  const Tensor mean = zeros({3}), var = ones({3});
  const Tensor y = batch_norm(x, mean, var, {.weight = w, .bias = b, .training = true});
  y.backward(make_input(y.sizes(), 4, kFloat16));
  EXPECT_EQ(x.grad().dtype(), kFloat16);
  EXPECT_EQ(w.grad().dtype(), kFloat32);
  EXPECT_EQ(b.grad().dtype(), kFloat32);
}

TEST(BatchNorm, OnlyTheGradientsAskedForAreMade) {
  const Tensor x = make_input({4, 3}), w = make_leaf({3}, 2);
  batch_norm(x, {}, {}, {.weight = w, .training = true}).backward(make_input({4, 3}, 4));
  EXPECT_TRUE(w.grad().defined());
  const Tensor leaf = make_leaf({4, 3}), fixed = make_input({3}, 2);
  batch_norm(leaf, zeros({3}, {.dtype = kFloat64}), ones({3}, {.dtype = kFloat64}), {.weight = fixed})
      .backward(ones({4, 3}, {.dtype = kFloat64}));
  EXPECT_NEAR(leaf.grad().to_vector<double>()[4], fixed.to_vector<double>()[1] / std::sqrt(1 + 1e-5), 1e-12);
}

TEST(BatchNorm, AnEmptyBatchGivesAnEmptyResultAndLeavesTheRunningStatistics) {
  const Tensor x = make_leaf({0, 3, 4}, 1, kFloat32), w = make_leaf({3}, 2, kFloat32);
  const Tensor mean = zeros({3}), var = ones({3});
  const Tensor y = batch_norm(x, mean, var, {.weight = w, .training = true});
  EXPECT_EQ(y.sizes(), Shape({0, 3, 4}));
  y.backward(zeros({0, 3, 4}));
  expect_close(w.grad(), zeros({3}));
  expect_close(var, ones({3}));
}

TEST(BatchNorm, EvaluationCanBeFollowedByTrainingBeforeBackward) {
  const Tensor x = make_leaf({4, 3}, 1, kFloat32);
  const Tensor mean = zeros({3}), var = ones({3});
  const Tensor y = batch_norm(x, mean, var);
  batch_norm(x, mean, var, {.training = true});
  y.backward(ones({4, 3}));
  EXPECT_NEAR(x.grad().to_vector<double>()[0], 1.0 / std::sqrt(1 + 1e-5), 1e-6);
}

// What a synchronised batch norm does: statistics and gradient sums of two halves, combined, act as those of the whole.
TEST(BatchNormParts, HalvesCombineToTheWhole) {
  namespace parts = batch_norm_parts;
  const Tensor x = make_input({6, 2, 5}, 1), grad = make_input({6, 2, 5}, 2);
  const ChannelStatistics whole = parts::channel_statistics(x);
  ChannelStatistics combined{zeros_like(whole.mean), zeros_like(whole.var), 30};
  const ChannelStatistics a = parts::channel_statistics(rows(x, 0, 2)), b = parts::channel_statistics(rows(x, 2, 4));
  for (int c = 0; c < 2; ++c) {
    const double ma = a.mean.data<double>()[c], mb = b.mean.data<double>()[c];
    const double va = a.var.data<double>()[c], vb = b.var.data<double>()[c];
    const double mean = (10 * ma + 20 * mb) / 30;
    combined.mean.data<double>()[c] = mean;
    combined.var.data<double>()[c] =
        (10 * (va + (ma - mean) * (ma - mean)) + 20 * (vb + (mb - mean) * (mb - mean))) / 30;
  }
  expect_close(combined.mean, whole.mean, 1e-12, 1e-12);
  expect_close(combined.var, whole.var, 1e-12, 1e-12);
  parts::GradientSums sums{zeros_like(whole.mean), zeros_like(whole.mean)};
  for (const auto& [start, length] : {std::pair{0, 2}, std::pair{2, 4}}) {
    const parts::GradientSums part =
        parts::gradient_sums(rows(grad, start, length), rows(x, start, length), combined, 1e-5);
    for (int c = 0; c < 2; ++c) {
      sums.bias.data<double>()[c] += part.bias.data<double>()[c];
      sums.weight.data<double>()[c] += part.weight.data<double>()[c];
    }
  }
  const Tensor leaf = make_leaf({6, 2, 5}, 1);
  batch_norm(leaf, {}, {}, {.training = true}).backward(grad);
  expect_close(parts::input_gradient(rows(grad, 2, 4), rows(x, 2, 4), combined, {}, sums, 1e-5),
               rows(leaf.grad(), 2, 4), 1e-10, 1e-12);
}

TEST(BatchNorm, UpdatesRunningStatisticsOfAnyLayout) {
  const Tensor x = make_input({4, 3});
  const Tensor mean = zeros({3}, {.dtype = kFloat64}), var = ones({3}, {.dtype = kFloat64});
  const Tensor gaps = zeros({6}, {.dtype = kFloat64}), strided = gaps.as_strided({3}, {2}, 0);
  batch_norm(x, mean, var, {.training = true});
  batch_norm(x, strided, ones({3}, {.dtype = kFloat64}), {.training = true});
  expect_close(strided, mean, 0, 0);
  expect_close(gaps.as_strided({3}, {2}, 1), zeros({3}), 0, 0);
}

TEST(BatchNormErrors, NameTheProblem) {
  const Tensor x = make_input({4, 3}, 1, kFloat32);
  const Tensor m = zeros({3}), v = ones({3});
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] {
         batch_norm(make_input({1, 3}), {}, {}, {.training = true});
       },
       "[batch_norm] training needs more than one value per channel, found an input of shape [1, 3]"},
      {[&] {
         batch_norm(make_input({1, 3, 1, 1}), {}, {}, {.training = true});
       },
       "[1, 3, 1, 1]"},
      {[&] { batch_norm(x, {}, v); }, "running_mean is undefined"},
      {[&] { batch_norm(x, m, {}); }, "running_var is undefined"},
      {[&] { batch_norm(x, zeros({4}), v); }, "expected running_mean of shape [3]"},
      {[&] {
         batch_norm(x, m, v, {.weight = ones({1, 3})});
       },
       "expected weight of shape [3]"},
      {[&] { batch_norm(x, m, v, {.bias = ones({3}, {.dtype = kFloat64})}); }, "expected bias of dtype float32"},
      {[&] {
         batch_norm(x, move_values(m, {kCPU, 1}), v);
       },
       "running_mean is on cpu:1"},
      {[&] { batch_norm(x, make_leaf({3}, 1, kFloat32), v); }, "running_mean must not require gradients"},
      {[&] { batch_norm(zeros({3}), m, v); }, "expected an input of shape [N, C]"},
      {[&] {
         batch_norm(zeros({4, 3}, {.dtype = kInt64}), m, v);
       },
       "found int64"},
      {[&] { batch_norm(x, m, v, {.eps = -1.0}); }, "eps is -1"},
      {[&] { batch_norm({}, m, v); }, "input is undefined"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::testing
