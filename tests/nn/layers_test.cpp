#include <gtest/gtest.h>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
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
  norm.train();
  norm(zeros({0, 4, 3, 3}));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 2) << "an empty batch counts, and changes no statistics";
  expect_close(norm.running_mean, mul(mean, 0.1), 1e-4, 1e-6);
}

TEST(BatchNorm1d, ForgetsItsStatistics) {
  BatchNorm1d norm(3);
  norm(make_input({4, 3}, 1, kFloat32));
  norm.reset_running_stats();
  EXPECT_EQ(norm.running_mean.to_vector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(norm.running_var.to_vector<float>(), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 0);
  BatchNorm1d(3, {.track_running_stats = false}).reset_running_stats();
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
  Dropout1d rows(0.5);
  for (double sum : rows(ones({8, 8, 5})).sum({2}).to_vector<double>()) EXPECT_TRUE(sum == 0.0 || sum == 10.0);
  Dropout3d volumes(0.5);
  for (double sum : volumes(ones({8, 8, 2, 3, 2})).sum({2, 3, 4}).to_vector<double>())
    EXPECT_TRUE(sum == 0.0 || sum == 24.0);
}

TEST(Dropout, OfSeluKeepsMeanAndVariance) {
  const Tensor x = randn({20000}, kFloat64).requires_grad_();
  AlphaDropout drop(0.3);
  const Tensor y = drop(x);
  EXPECT_NEAR(y.mean().item(), 0.0, 0.03);
  EXPECT_NEAR(y.var().item(), 1.0, 0.04);
  y.sum().backward();
  // a (x + 0.3 * limit) and a * limit * (0.3 - 1), as torch.nn.functional.alpha_dropout
  const double limit = 1.7580993408473766, a = 1 / std::sqrt(0.7 * (1 + 0.3 * limit * limit));
  std::int64_t dropped = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const bool kept = x.grad()[i].item() != 0;
    dropped += !kept;
    EXPECT_NEAR(y[i].item(), kept ? a * (x[i].item() + 0.3 * limit) : -a * 0.7 * limit, 1e-12);
    EXPECT_NEAR(x.grad()[i].item(), kept ? a : 0.0, 1e-12);
    if (i == 200) break;
  }
  EXPECT_NEAR(static_cast<double>(dropped), 60.0, 25.0);
  FeatureAlphaDropout channels(0.5);
  for (const double spread : channels(ones({4, 8, 3, 3})).var({2, 3}).to_vector<double>()) EXPECT_EQ(spread, 0.0);
  channels.eval();
  EXPECT_TRUE(equal(channels(image()), image()));
}

// As PyTorch's documentation writes it: h = W_hr h', and the gates take W_hh h.
TEST(LSTM, ProjectionsAreTheStepsOfACell) {
  manual_seed(1);
  LSTM lstm(3, 5, {.num_layers = 2, .bidirectional = true, .proj_size = 2});
  const Tensor x = randn({4, 2, 3}).requires_grad_(), h0 = randn({4, 2, 2}).requires_grad_(), c0 = randn({4, 2, 5});
  const auto named = lstm.named_parameters();
  const auto plainly = [&](bool started) {
    Tensor layer = x;
    for (std::int64_t row = 0; row < 4; row += 2) {
      std::vector<Tensor> both;
      for (std::int64_t d = 0; d < 2; ++d) {
        const auto weight = [&](std::size_t i) { return named[static_cast<std::size_t>(row + d) * 5 + i].tensor; };
        Tensor h = started ? h0[row + d] : zeros({2, 2}), c = started ? c0[row + d] : zeros({2, 5});
        const Tensor outputs = zeros({4, 2, 2});
        for (std::int64_t i = 0; i < 4; ++i) {
          const std::int64_t t = d == 0 ? i : 3 - i;
          const auto gates = (linear(layer[t], weight(0), weight(2)) + linear(h, weight(1), weight(3))).chunk(4, 1);
          c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
          h = linear(sigmoid(gates[3]) * tanh(c), weight(4));
          outputs[t] = h;
        }
        both.push_back(outputs);
      }
      layer = cat(both, 2);
    }
    return layer;
  };
  ASSERT_EQ(named.size(), 20u);
  EXPECT_EQ(named[4].name, "weight_hr_l0");
  EXPECT_EQ(named[10].tensor.sizes(), (Shape{20, 4}));
  for (const bool started : {false, true}) {
    const auto [output, state] = started ? lstm(x, LSTMState{h0, c0}) : lstm(x);
    EXPECT_EQ(state.h.sizes(), (Shape{4, 2, 2}));
    EXPECT_EQ(state.c.sizes(), (Shape{4, 2, 5}));
    const Tensor expected = plainly(started);
    expect_close(output, expected, 1e-5, 1e-6);
    expect_close(state.h[3], output[0].slice(1, 2, 4));
    std::vector<Tensor> inputs{x, named[1].tensor, named[4].tensor};
    if (started) inputs.push_back(h0);
    const auto slopes = grad({square(output).sum()}, inputs), plain = grad({square(expected).sum()}, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) expect_close(slopes[i], plain[i], 1e-4, 1e-5);
  }
  const auto packed = utils::rnn::pack_padded_sequence(x, tensor<std::int64_t>({4, 4}));
  expect_close(lstm.forward_with_packed_input(packed).first.data.view({4, 2, 4}), lstm(x).first, 1e-5, 1e-6);
  EXPECT_NE(error_of([] { GRU(3, 5, {.proj_size = 2}); }).find("a proj_size is for LSTM"), std::string::npos);
}

TEST(Recurrent, ErrorsNameTheLayer) {
  const auto packed = utils::rnn::pack_sequence({ones({3, 2}), ones({1, 2})});
  const auto expect_error = [](const char* name, const std::string& error) {
    EXPECT_TRUE(error.starts_with("[" + std::string(name) + "] expected ")) << error;
  };
  expect_error("nn::RNN", error_of([&] { RNN(3, 4).forward_with_packed_input(packed); }));
  expect_error("nn::LSTM", error_of([&] { LSTM(3, 4).forward_with_packed_input(packed); }));
  expect_error("nn::LSTM", error_of([&] { LSTM(2, 4).forward_with_packed_input(packed, {ones({1}), {}}); }));
  expect_error("nn::GRU", error_of([&] { GRU(3, 4).forward_with_packed_input(packed); }));
  expect_error("nn::GRU", error_of([&] { GRU(2, 4).forward_with_packed_input(packed, ones({1})); }));
  expect_error("nn::RNNCell", error_of([] { RNNCell(3, 4)(ones({1, 1, 3})); }));
  expect_error("nn::LSTMCell", error_of([] { LSTMCell(3, 4)(ones({1, 1, 3})); }));
  expect_error("nn::GRUCell", error_of([] { GRUCell(3, 4)(ones({1, 1, 3})); }));
}

TEST(FunctionsAsModules, AreTheFunctions) {
  expect_close(Softmin(1)(image()), softmax(-image(), 1));
  expect_close(LocalResponseNorm(3, 0.1)(image()), local_response_norm(image(), 3, 0.1));
  const Tensor x = make_input({2, 3, 4, 6}, 1, kFloat32);
  const Tensor columns = Unfold(2, {.stride = 2})(x);
  EXPECT_EQ(columns.sizes(), (Shape{2, 12, 6}));
  expect_close(Fold({4, 6}, 2, {.stride = 2})(columns), x);
  const auto [values, places] = max_pool2d_with_indices(x, 2);
  expect_close(max_pool2d(MaxUnpool2d(2)(values, places), 2), values.clamp_min(0));
  EXPECT_EQ(MaxUnpool2d(2)(values, places, Size2d(5, 7)).sizes(), (Shape{2, 3, 5, 7}));
  EXPECT_NE(error_of([&] { max_unpool2d(values, places.to(kInt32), 2); }).find("expected int64 indices"),
            std::string::npos);
}

TEST(ParameterDict, HoldsParametersByName) {
  struct Net : Module {
    ParameterDict scales{this, "scales"};
    Net() {
      scales.insert("left", ones({2}));
      scales.insert("right", zeros({3}));
    }
  } net;
  ASSERT_EQ(net.named_parameters().size(), 2u);
  EXPECT_EQ(net.named_parameters()[1].name, "scales.right");
  EXPECT_TRUE(net.scales["left"].is_same(net.named_parameters()[0].tensor));
  EXPECT_TRUE(net.scales.contains("right") && !net.scales.contains("up"));
  EXPECT_NE(error_of([&] { net.scales["up"]; }).find("there is no parameter \"up\""), std::string::npos);
  EXPECT_NE(error_of([&] { net.scales.insert("left", ones({1})); }), "");
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

TEST(Sequential, MayGrowWhileItRuns) {
  nn::Sequential net;
  net.add<nn::Linear>(4, 4);
  net[0].register_forward_hook([&](nn::Module&, const Tensor&, Tensor&) {
    while (net.size() < 20) net.add<nn::Linear>(4, 4);
  });
  EXPECT_EQ(net(ones({2, 4})).sizes(), Shape({2, 4}));
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

// A module as users write it, to be a member.
struct Scaled : Module {
  Scaled(Module* parent, std::string_view name, std::int64_t width, double scale)
      : Module(parent, name), inner{this, "inner", width, width}, scale(scale) {}
  Tensor forward(Tensor x) override { return inner(x) * scale; }
  Linear inner;
  double scale;
};

TEST(Sequential, MakesModulesWhoseConstructorTakesAParent) {
  Sequential net;
  net.add<Linear>(3, 4).add<Scaled>(4, 2.0);
  EXPECT_EQ(net.named_parameters().keys(),
            (std::vector<std::string>{"0.weight", "0.bias", "1.inner.weight", "1.inner.bias"}));
  ModuleList<Scaled> list;
  EXPECT_EQ(list.add(4, 0.5).scale, 0.5);
  ModuleDict<> dict;
  EXPECT_EQ(dict.add<Scaled>("a", 4, 0.25).scale, 0.25);
}

TEST(Norms, TakeSizesInBraces) {
  LayerNorm layer({3, 4}), other{{3, 4}, {.eps = 1e-3}}, third(4), fourth(Shape{4});
  RMSNorm rms({4});
  EXPECT_EQ(layer.weight.sizes(), Shape({3, 4}));
  EXPECT_EQ(other.weight.sizes(), Shape({3, 4}));
  EXPECT_EQ(third.weight.sizes(), fourth.weight.sizes());
  EXPECT_EQ(rms.weight.sizes(), Shape({4}));
}

TEST(LSTM, TakesAStateInBraces) {
  LSTM lstm(2, 3);
  LSTMCell cell(2, 3);
  const Tensor x = ones({4, 1, 2}), h = ones({1, 1, 3}), c = zeros({1, 1, 3});
  const auto [output, state] = lstm(x, {h, c});
  EXPECT_TRUE(output.equal(lstm(x, LSTMState{h, c}).first));
  EXPECT_FALSE(output.equal(lstm(x).first));
  EXPECT_EQ(cell(x[0], {h[0], c[0]}).h.sizes(), Shape({1, 3}));
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
