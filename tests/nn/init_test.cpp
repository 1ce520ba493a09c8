#include "lockstep/nn/init.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/conv.h"
#include "lockstep/nn/linear.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;

struct Moments {
  double mean, std, min, max;
};

Moments moments(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector<double>();
  Moments m{0, 0, values[0], values[0]};
  for (double v : values) {
    m.mean += v / static_cast<double>(values.size());
    m.min = std::min(m.min, v);
    m.max = std::max(m.max, v);
  }
  for (double v : values) m.std += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size());
  m.std = std::sqrt(m.std);
  return m;
}

void expect_uniform(const Tensor& tensor, double bound) {
  const Moments m = moments(tensor);
  EXPECT_GE(m.min, -bound);
  EXPECT_LE(m.max, bound);
  EXPECT_NEAR(m.std, bound / std::sqrt(3.0), 0.02 * bound);
  EXPECT_NEAR(m.mean, 0.0, 0.03 * bound);
}

void expect_normal(const Tensor& tensor, double std) {
  const Moments m = moments(tensor);
  EXPECT_NEAR(m.std, std, 0.03 * std);
  EXPECT_NEAR(m.mean, 0.0, 0.04 * std);
}

// weight [64, 32, 3, 3]: fan_in 288, fan_out 576.
class Init : public ::testing::Test {
 protected:
  Init() { manual_seed(3); }
  Tensor weight = empty({64, 32, 3, 3});
};

TEST_F(Init, Fans) {
  EXPECT_EQ(init::fan_in(weight), 288);
  EXPECT_EQ(init::fan_out(weight), 576);
  EXPECT_NE(error_of([] { init::fan_in(ones({3})); }).find("2 or more dimensions, found [3]"), std::string::npos);
  EXPECT_NE(error_of([] { init::xavier_normal_(ones({3})); }).find("[xavier_normal_]"), std::string::npos);
}

TEST_F(Init, KaimingUniform) {
  init::kaiming_uniform_(weight);
  expect_uniform(weight, std::sqrt(6.0 / 288));
  init::kaiming_uniform_(weight, {.negative_slope = std::sqrt(5.0)});
  expect_uniform(weight, 1.0 / std::sqrt(288.0));
  init::kaiming_uniform_(weight, {.fan = init::Fan::out});
  expect_uniform(weight, std::sqrt(6.0 / 576));
}

TEST_F(Init, KaimingNormal) {
  init::kaiming_normal_(weight);
  expect_normal(weight, std::sqrt(2.0 / 288));
}

TEST_F(Init, Xavier) {
  init::xavier_uniform_(weight, 2.0);
  expect_uniform(weight, 2.0 * std::sqrt(6.0 / (288 + 576)));
  init::xavier_normal_(weight);
  expect_normal(weight, std::sqrt(2.0 / (288 + 576)));
}

TEST_F(Init, Constants) {
  init::ones_(weight);
  EXPECT_EQ(moments(weight).min, 1.0);
  init::constant_(weight, -2.5);
  EXPECT_EQ(moments(weight).max, -2.5);
  init::zeros_(weight);
  EXPECT_EQ(moments(weight).max, 0.0);
  init::uniform_(weight, 2.0, 4.0);
  EXPECT_NEAR(moments(weight).mean, 3.0, 0.03);
  init::normal_(weight, 5.0, 0.5);
  EXPECT_NEAR(moments(weight).std, 0.5, 0.02);
}

TEST_F(Init, TruncatedNormalsStayInTheirBounds) {
  const Tensor x = empty({100000});
  init::trunc_normal_(x, 1.0, 2.0);
  const Moments all = moments(x);
  EXPECT_GE(all.min, -2.0);
  EXPECT_LE(all.max, 2.0);
  EXPECT_NEAR(all.mean, 0.2874, 0.02);
  EXPECT_NEAR(all.std, 1.0587, 0.02);
  init::trunc_normal_(x, 0.0, 1.0, 3.9, 8.0);  // far out, where few of a normal distribution's numbers are
  EXPECT_GE(moments(x).min, 3.9);
  EXPECT_NEAR(moments(x).mean, 4.1304, 0.01);
  init::trunc_normal_(x, 0.0, 1.0, 0.0, INFINITY);
  EXPECT_NEAR(moments(x).mean, std::sqrt(2.0 / 3.14159265), 0.01);
  for (const double std : {-1.0, 1.0 / 0.0, std::nan("")})
    EXPECT_NE(error_of([&] { init::trunc_normal_(x, 0.0, std); }).find("[trunc_normal_]"), std::string::npos) << std;
}

TEST_F(Init, EyeIsTheUnitMatrix) {
  const Tensor wide = full({2, 3}, 7.0), tall = full({2, 3}, 7.0).t();
  init::eye_(wide);
  init::eye_(tall);
  EXPECT_EQ(wide.to_vector<float>(), (std::vector<float>{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(tall.contiguous().to_vector<float>(), (std::vector<float>{1, 0, 0, 1, 0, 0}));
  EXPECT_NE(error_of([] { init::eye_(ones({3})); }).find("[eye_] expected a matrix, found [3]"), std::string::npos);
}

TEST_F(Init, DiracPassesChannelsOnAndGainsArePyTorchs) {
  const Tensor x = make_input({1, 4, 5, 5}, 1, kFloat64);
  const Tensor w = empty({4, 2, 3, 3}, {.dtype = kFloat64});
  init::dirac_(w, 2);
  expect_close(conv2d(x, w, {}, {.padding = 1, .groups = 2}), x);
  const Tensor more = empty({5, 4, 3}, {.dtype = kFloat64});
  init::dirac_(more);
  EXPECT_EQ(more.sum().item(), 4.0);
  EXPECT_EQ(more[3][3][1].item(), 1.0);
  EXPECT_NE(error_of([] { init::dirac_(zeros({2, 2})); }).find("[dirac_]"), std::string::npos);
  EXPECT_DOUBLE_EQ(init::calculate_gain("leaky_relu", 0.2), std::sqrt(2.0 / 1.04));
  EXPECT_DOUBLE_EQ(init::calculate_gain("tanh"), 5.0 / 3.0);
  EXPECT_DOUBLE_EQ(init::calculate_gain("conv2d") + init::calculate_gain("selu"), 1.75);
  EXPECT_NE(error_of([] { init::calculate_gain("swish"); }).find("found \"swish\""), std::string::npos);
}

TEST_F(Init, LayersStartAsPyTorchs) {
  const Linear linear(100, 200);
  expect_uniform(linear.weight, 0.1);
  EXPECT_LE(moments(linear.bias).max, 0.1);
  EXPECT_GT(moments(linear.bias).std, 0.04);
  const Conv2d conv(32, 64, 3, {.groups = 2});
  expect_uniform(conv.weight, 1.0 / std::sqrt(16.0 * 9.0));
  const Embedding embedding(100, 50, {.padding_idx = -1});
  EXPECT_NEAR(moments(embedding.weight).std, 1.0, 0.05);
  const std::vector<double> values = embedding.weight.to_vector<double>();
  EXPECT_EQ(std::vector<double>(values.end() - 50, values.end()), std::vector<double>(50, 0.0));
}

TEST_F(Init, DependsOnTheSeedAndNotOnOtherStreams) {
  manual_seed(5);
  const Linear a(4, 4);
  manual_seed(5);
  rand({10});
  const Linear b(4, 4);
  const Linear c(4, 4);
  EXPECT_EQ(a.weight.to_vector<double>(), b.weight.to_vector<double>());
  EXPECT_NE(a.weight.to_vector<double>(), c.weight.to_vector<double>());
}

}  // namespace
}  // namespace lockstep::nn
