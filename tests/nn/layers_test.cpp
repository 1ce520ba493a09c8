#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/nn.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;

Tensor image() {
  return make_input({2, 4, 6, 5}, 1, kFloat32);
}

TEST(Linear, IsTheFunction) {
  Linear fc(3, 5);
  const Tensor x = make_input({4, 3}, 1, kFloat32);
  expect_close(fc(x), linear(x, fc.weight, fc.bias));
  Linear without(3, 5, {.bias = false});
  EXPECT_EQ(without.parameters().size(), 1u);
  EXPECT_FALSE(without.bias.defined());
  expect_close(without(x), linear(x, without.weight));
}

TEST(Conv2d, IsTheFunction) {
  Conv2d conv(4, 6, {3, 2}, {.stride = {2, 1}, .padding = {0, 1}, .dilation = {1, 2}, .groups = 2});
  EXPECT_EQ(conv.weight.sizes(), (Shape{6, 2, 3, 2}));
  expect_close(conv(image()), conv2d(image(), conv.weight, conv.bias,
                                     {.stride = {2, 1}, .padding = {0, 1}, .dilation = {1, 2}, .groups = 2}));
  Conv2d without(4, 6, 3, {.bias = false});
  EXPECT_EQ(without.parameters().size(), 1u);
  expect_close(without(image()), conv2d(image(), without.weight));
  EXPECT_NE(error_of([] { Conv2d(3, 4, 3, {.groups = 2}); }).find("2 groups for 3 -> 4"), std::string::npos);
}

TEST(Embedding, IsTheFunction) {
  Embedding table(5, 3, {.padding_idx = 1});
  const Tensor index = tensor<std::int64_t>({4, 1, 0, 4});
  const Tensor out = table(index);
  expect_close(out, embedding(table.weight, index));
  out.backward(ones({4, 3}));
  EXPECT_EQ(table.weight.grad().to_vector<double>(),
            (std::vector<double>{1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2}));
  EXPECT_NE(error_of([] { Embedding(5, 3, {.padding_idx = 5}); }).find("padding_idx 5 is outside the 5 rows"),
            std::string::npos);
}

TEST(BatchNorm2d, TracksStatisticsWhileTraining) {
  BatchNorm2d norm(4);
  const Tensor x = image();
  const Tensor mean = x.mean({0, 2, 3});
  const Tensor var = x.var({0, 2, 3});
  expect_close(norm(x), batch_norm(x, {}, {}, {.weight = norm.weight, .bias = norm.bias, .training = true}));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 1);
  expect_close(norm.running_mean, mul(mean, 0.1), 1e-4, 1e-6);
  expect_close(norm.running_var, add(mul(var, 0.1), 0.9), 1e-4, 1e-6);
  norm.eval();
  expect_close(norm(x), batch_norm(x, norm.running_mean, norm.running_var, {.weight = norm.weight, .bias = norm.bias}));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 1);
}

TEST(BatchNorm1d, CumulativeMeanWithoutMomentum) {
  BatchNorm1d norm(3, {.momentum = std::nullopt});
  const Tensor a = make_input({6, 3}, 1, kFloat32), b = make_input({6, 3}, 2, kFloat32);
  norm(a);
  norm(b);
  expect_close(norm.running_mean, mul(add(a.mean({0}), b.mean({0})), 0.5), 1e-4, 1e-6);
}

TEST(BatchNorm, WithoutStatisticsUsesTheBatchsAlways) {
  BatchNorm1d norm(3, {.affine = false, .track_running_stats = false});
  EXPECT_TRUE(norm.state().empty());
  const Tensor x = make_input({6, 3}, 1, kFloat32);
  const Tensor trained = norm(x);
  norm.eval();
  expect_close(norm(x), trained);
}

TEST(BatchNorm, RefusesOtherDimensions) {
  EXPECT_NE(error_of([] {
              BatchNorm2d(3)(ones({2, 3}));
            }).find("expected [n, c, h, w], found [2, 3]"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              BatchNorm1d(3)(ones({2, 3, 1, 1}));
            }).find("expected [n, c] or [n, c, length]"),
            std::string::npos);
}

TEST(LayerNorm, IsTheFunction) {
  LayerNorm norm({6, 5}, {.eps = 1e-3});
  expect_close(norm(image()), layer_norm(image(), {6, 5}, {.weight = norm.weight, .bias = norm.bias, .eps = 1e-3}));
  EXPECT_EQ(norm.parameters().size(), 2u);
  LayerNorm plain({5}, {.affine = false});
  EXPECT_TRUE(plain.parameters().empty());
  expect_close(plain(image()), layer_norm(image(), {5}));
}

TEST(GroupNorm, IsTheFunction) {
  GroupNorm norm(1, image().size(1), {.eps = 1e-3});
  expect_close(norm(image()), group_norm(image(), 1, {.weight = norm.weight, .bias = norm.bias, .eps = 1e-3}));
  EXPECT_EQ(norm.parameters().size(), 2u);
  EXPECT_TRUE(GroupNorm(1, 3, {.affine = false}).parameters().empty());
  EXPECT_NE(error_of([] { GroupNorm(2, 3); }).find("divides the 3 channels, found 2"), std::string::npos);
}

TEST(Pooling, IsTheFunctions) {
  MaxPool2d max(2, {.stride = 1});
  AvgPool2d avg({2, 3});
  AdaptiveAvgPool2d adaptive({3, 1});
  expect_close(max(image()), max_pool2d(image(), 2, {.stride = 1}));
  expect_close(avg(image()), avg_pool2d(image(), {2, 3}));
  expect_close(adaptive(image()), adaptive_avg_pool2d(image(), {3, 1}));
}

TEST(Dropout, DropsWhileTrainingOnly) {
  const Tensor x = ones({1000});
  Dropout drop(0.5);
  const std::vector<double> y = drop(x).to_vector<double>();
  std::int64_t zeros = 0;
  for (double v : y) {
    EXPECT_TRUE(v == 0.0 || v == 2.0);
    zeros += v == 0.0;
  }
  EXPECT_NEAR(static_cast<double>(zeros), 500.0, 80.0);
  drop.eval();
  expect_close(drop(x), x);
  Dropout2d channels(0.5);
  const Tensor planes = channels(ones({8, 8, 3, 3})).sum({2, 3});
  for (double sum : planes.to_vector<double>()) EXPECT_TRUE(sum == 0.0 || sum == 18.0);
  EXPECT_NE(error_of([] { Dropout drop(1.5); }).find("[nn::Dropout] expected a probability"), std::string::npos);
  EXPECT_NE(error_of([] { Dropout2d drop(-1); }).find("[nn::Dropout2d]"), std::string::npos);
}

TEST(Activations, AreTheFunctions) {
  const Tensor x = make_input({3, 4, 2}, 1, kFloat32, -3.0, 3.0);
  expect_close(ReLU()(x), relu(x));
  expect_close(LeakyReLU(0.2)(x), leaky_relu(x, 0.2));
  expect_close(GELU()(x), gelu(x));
  expect_close(SiLU()(x), silu(x));
  expect_close(Tanh()(x), tanh(x));
  expect_close(Sigmoid()(x), sigmoid(x));
  expect_close(Softmax(1)(x), softmax(x, 1));
  EXPECT_EQ(Flatten()(x).sizes(), (Shape{3, 8}));
  EXPECT_EQ(Flatten(0, 1)(x).sizes(), (Shape{12, 2}));
  EXPECT_TRUE(Identity()(x).is_same(x));
}

TEST(Sequential, RunsInOrderUnderNumbers) {
  Sequential net;
  net.add<Linear>(3, 4).add<ReLU>().add<Linear>(4, 2, LinearOptions{.bias = false});
  ASSERT_EQ(net.size(), 3u);
  const auto named = net.named_parameters();
  ASSERT_EQ(named.size(), 3u);
  EXPECT_EQ(named[0].name, "0.weight");
  EXPECT_EQ(named[2].name, "2.weight");
  const Tensor x = make_input({5, 3}, 1, kFloat32);
  expect_close(net(x), net[2](relu(net[0](x))));
  net.eval();
  EXPECT_FALSE(net[1].is_training());
}

TEST(Sequential, TakesModulesAndNests) {
  struct Net : Module {
    Sequential body{this, "body"};
    Net() {
      body.add<Linear>(2, 2);
      body.push_back(std::make_unique<Sequential>(std::make_unique<Linear>(2, 2), std::make_unique<Tanh>()));
    }
    Tensor forward(Tensor x) override { return body(x); }
  } net;
  EXPECT_EQ(net.named_parameters()[2].name, "body.1.0.weight");
  EXPECT_EQ(net(ones({1, 2})).sizes(), (Shape{1, 2}));
  EXPECT_NE(error_of([&] { net.body.push_back(nullptr); }).find("found a null pointer"), std::string::npos);
}

TEST(ModuleList, HoldsTypedElements) {
  struct Net : Module {
    ModuleList<Linear> layers{this, "layers"};
    Net() {
      for (std::int64_t i = 1; i <= 3; ++i) layers.add(i, i + 1);
    }
    Tensor forward(Tensor x) override {
      for (Linear& layer : layers) x = layer(x);
      return x;
    }
  } net;
  EXPECT_EQ(net.layers.size(), 3u);
  EXPECT_EQ(net.layers[1].weight.sizes(), (Shape{3, 2}));
  EXPECT_EQ(net.named_parameters()[3].name, "layers.1.bias");
  EXPECT_EQ(net(ones({2, 1})).sizes(), (Shape{2, 4}));
  ModuleList<> any;
  any.add<ReLU>();
  any.add<Linear>(1, 1);
  EXPECT_EQ(any.parameters().size(), 2u);
}

}  // namespace
}  // namespace lockstep::nn
