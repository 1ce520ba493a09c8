// Modules that hold a function's options give what the function gives, forward and backward; recurrent layers what
// their cells give, and small functions of tensors what their names say.

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/clip_grad.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;

struct OfOne {
  const char* name;
  Shape sizes;
  std::function<std::shared_ptr<Module>()> module;
  std::function<Tensor(const Tensor&)> function;
};

template <typename M, typename... Arguments>
std::function<std::shared_ptr<Module>()> made(Arguments... arguments) {
  return [=] { return std::make_shared<M>(arguments...); };
}

TEST(FunctionModules, OfOneTensor) {
  const OfOne cases[] = {
      {"Softsign", {3, 8}, made<Softsign>(), [](const Tensor& x) { return softsign(x); }},
      {"Hardswish", {3, 8}, made<Hardswish>(), [](const Tensor& x) { return hardswish(x); }},
      {"Hardsigmoid", {3, 8}, made<Hardsigmoid>(), [](const Tensor& x) { return hardsigmoid(x); }},
      {"Mish", {3, 8}, made<Mish>(), [](const Tensor& x) { return mish(x); }},
      {"LogSigmoid", {3, 8}, made<LogSigmoid>(), [](const Tensor& x) { return logsigmoid(x); }},
      {"ReLU6", {3, 8}, made<ReLU6>(), [](const Tensor& x) { return relu6(x); }},
      {"SELU", {3, 8}, made<SELU>(), [](const Tensor& x) { return selu(x); }},
      {"ELU", {3, 8}, made<ELU>(0.7), [](const Tensor& x) { return elu(x, 0.7); }},
      {"CELU", {3, 8}, made<CELU>(0.7), [](const Tensor& x) { return celu(x, 0.7); }},
      {"Softplus", {3, 8}, made<Softplus>(2.0, 3.0), [](const Tensor& x) { return softplus(x, 2.0, 3.0); }},
      {"Hardtanh", {3, 8}, made<Hardtanh>(-0.5, 2.0), [](const Tensor& x) { return hardtanh(x, -0.5, 2.0); }},
      {"LogSoftmax", {3, 8}, made<LogSoftmax>(0), [](const Tensor& x) { return log_softmax(x, 0); }},
      {"Softmin", {3, 8}, made<Softmin>(0), [](const Tensor& x) { return softmin(x, 0); }},
      {"GLU", {3, 8}, made<GLU>(1), [](const Tensor& x) { return glu(x, 1); }},
      {"PReLU", {2, 3, 4}, made<PReLU>(3, 0.1), [](const Tensor& x) { return prelu(x, full({3}, 0.1)); }},
      {"Unflatten",
       {3, 8},
       made<Unflatten>(1, Shape{2, 4}),
       [](const Tensor& x) {
         return x.view({3, 2, 4});
       }},
      {"Threshold", {3, 8}, made<Threshold>(0.5, -2.0), [](const Tensor& x) { return threshold(x, 0.5, -2.0); }},
      {"Tanhshrink", {3, 8}, made<Tanhshrink>(), [](const Tensor& x) { return tanhshrink(x); }},
      {"Softshrink", {3, 8}, made<Softshrink>(0.7), [](const Tensor& x) { return softshrink(x, 0.7); }},
      {"Hardshrink", {3, 8}, made<Hardshrink>(0.7), [](const Tensor& x) { return hardshrink(x, 0.7); }},
      {"MaxPool1d", {2, 3, 9}, made<MaxPool1d>(3, 2, 1), [](const Tensor& x) { return max_pool1d(x, 3, 2, 1); }},
      {"AvgPool1d", {2, 3, 9}, made<AvgPool1d>(3, 2, 1), [](const Tensor& x) { return avg_pool1d(x, 3, 2, 1); }},
      {"AdaptiveAvgPool1d",
       {2, 3, 9},
       made<AdaptiveAvgPool1d>(4),
       [](const Tensor& x) { return adaptive_avg_pool1d(x, 4); }},
      {"AdaptiveMaxPool1d",
       {2, 3, 9},
       made<AdaptiveMaxPool1d>(4),
       [](const Tensor& x) { return adaptive_max_pool1d(x, 4); }},
      {"AdaptiveMaxPool2d",
       {2, 3, 5, 7},
       made<AdaptiveMaxPool2d>(Size2d(2, 3)),
       [](const Tensor& x) {
         return adaptive_max_pool2d(x, {2, 3});
       }},
      {"MaxPool3d",
       {1, 2, 4, 5, 6},
       made<MaxPool3d>(Size3d(2), MaxPool3dOptions{.stride = 1}),
       [](const Tensor& x) { return max_pool3d(x, 2, {.stride = 1}); }},
      {"AvgPool3d",
       {1, 2, 4, 5, 6},
       made<AvgPool3d>(Size3d(2), AvgPool3dOptions{.stride = 1}),
       [](const Tensor& x) { return avg_pool3d(x, 2, {.stride = 1}); }},
      {"AdaptiveAvgPool3d",
       {1, 2, 4, 5, 6},
       made<AdaptiveAvgPool3d>(Size3d(2, 3, 4)),
       [](const Tensor& x) {
         return adaptive_avg_pool3d(x, {2, 3, 4});
       }},
      {"Upsample",
       {1, 2, 3, 4},
       made<Upsample>(InterpolateOptions{.scale_factor = 2, .mode = InterpolateMode::bilinear}),
       [](const Tensor& x) { return interpolate(x, {.scale_factor = 2, .mode = InterpolateMode::bilinear}); }},
      {"Pad2d",
       {1, 2, 3, 4},
       made<Pad2d>(std::vector<std::int64_t>{1, 0, 2, 1}, PadMode::constant, 5.0),
       [](const Tensor& x) {
         return pad(x, {1, 0, 2, 1}, PadMode::constant, 5.0);
       }},
      {"PixelShuffle", {1, 8, 3, 4}, made<PixelShuffle>(2), [](const Tensor& x) { return pixel_shuffle(x, 2); }},
      {"PixelUnshuffle", {1, 2, 4, 6}, made<PixelUnshuffle>(2), [](const Tensor& x) { return pixel_unshuffle(x, 2); }},
      {"Dropout1d", {4, 5, 6}, made<Dropout1d>(0.5), [](const Tensor& x) { return dropout1d(x, 0.5); }},
      {"Dropout3d", {4, 5, 2, 3, 2}, made<Dropout3d>(0.5), [](const Tensor& x) { return dropout3d(x, 0.5); }},
      {"FeatureAlphaDropout",
       {4, 5, 6},
       made<FeatureAlphaDropout>(0.5),
       [](const Tensor& x) { return feature_alpha_dropout(x, 0.5); }},
  };
  for (const OfOne& c : cases) {
    SCOPED_TRACE(c.name);
    const Tensor x = make_leaf(c.sizes, 1, kFloat32, -3.0, 3.0), again = make_leaf(c.sizes, 1, kFloat32, -3.0, 3.0);
    manual_seed(1);
    const Tensor y = (*c.module())(x);
    manual_seed(1);
    const Tensor expected = c.function(again);
    EXPECT_TRUE(same_bits(y, expected));
    y.backward(make_input(y.sizes(), 2, kFloat32));
    expected.backward(make_input(y.sizes(), 2, kFloat32));
    EXPECT_TRUE(same_bits(x.grad(), again.grad())) << "of the gradient";
  }
}

TEST(FunctionModules, Losses) {
  const Tensor a = make_input({4, 3}, 1, kFloat32), b = make_input({4, 3}, 2, kFloat32),
               c = make_input({4, 3}, 3, kFloat32);
  const Tensor share = make_input({4, 3}, 4, kFloat32, 0.1, 0.9), other = make_input({4, 3}, 5, kFloat32, 0.1, 0.9);
  const Tensor sign = tensor<float>({1, -1, -1, 1}), signs = sign.view({4, 1}).expand({4, 3});
  const Tensor classes = tensor<std::int64_t>({0, 2, 1, 2});
  constexpr Reduction kSum = Reduction::sum;
  const std::pair<Tensor, Tensor> pairs[] = {
      {MSELoss(kSum)(a, b), mse_loss(a, b, {kSum})},
      {MSELoss(kSum)(a, b), mse_loss(a, b, kSum)},
      {L1Loss(kSum)(a, b), l1_loss(a, b, kSum)},
      {SmoothL1Loss(0.3, kSum)(a, b), smooth_l1_loss(a, b, 0.3, kSum)},
      {HuberLoss(0.3, kSum)(a, b), huber_loss(a, b, 0.3, kSum)},
      {BCELoss(kSum, other)(share, share), binary_cross_entropy(share, share, other, kSum)},
      {BCEWithLogitsLoss({.reduction = kSum})(a, share),
       binary_cross_entropy_with_logits(a, share, {.reduction = kSum})},
      {BCEWithLogitsLoss({.reduction = kSum, .weight = b})(a, share),
       binary_cross_entropy_with_logits(a, share, b, kSum)},
      {BCEWithLogitsLoss({.reduction = kSum})(a, share), binary_cross_entropy_with_logits(a, share, {}, kSum)},
      {CrossEntropyLoss({.label_smoothing = 0.1})(a, classes), cross_entropy(a, classes, {.label_smoothing = 0.1})},
      {NLLLoss({.ignore_index = 2})(a, classes), nll_loss(a, classes, {.ignore_index = 2})},
      {KLDivLoss(kSum, true)(a, b), kl_div(a, b, kSum, true)},
      {KLDivLoss("batchmean")(a, share), kl_div(a, share, "batchmean")},
      {HingeEmbeddingLoss(0.3, kSum)(a, signs), hinge_embedding_loss(a, signs, 0.3, kSum)},
      {SoftMarginLoss(kSum)(a, signs), soft_margin_loss(a, signs, kSum)},
      {MarginRankingLoss(0.3, kSum)(a, b, signs), margin_ranking_loss(a, b, signs, 0.3, kSum)},
      {CosineEmbeddingLoss(0.3, kSum)(a, b, sign), cosine_embedding_loss(a, b, sign, 0.3, kSum)},
      {TripletMarginLoss(0.3, 1.5, true, kSum)(a, b, c), triplet_margin_loss(a, b, c, 0.3, 1.5, 1e-6, true, kSum)},
      {GaussianNLLLoss(0.2, kSum)(a, b, share), gaussian_nll_loss(a, b, share, 0.2, kSum)},
      {PoissonNLLLoss(false, kSum)(share, other), poisson_nll_loss(share, other, false, 1e-8, kSum)},
      {CosineSimilarity(0, 0.1)(a, b), cosine_similarity(a, b, 0, 0.1)},
      {PairwiseDistance(1.0, 0.1, true)(a, b), pairwise_distance(a, b, 1.0, 0.1, true)},
  };
  for (std::size_t i = 0; i < std::size(pairs); ++i)
    EXPECT_TRUE(same_bits(pairs[i].first, pairs[i].second)) << "pair " << i;
  const Tensor steps = log_softmax(make_input({6, 2, 4}, 6, kFloat32), 2),
               words = tensor<std::int64_t>({1, 2, 3, 3}).view({2, 2});
  const std::vector<std::int64_t> lengths{6, 5}, targets{2, 1};
  EXPECT_TRUE(same_bits(CTCLoss({.reduction = kSum})(steps, words, lengths, targets),
                        ctc_loss(steps, words, lengths, targets, {.reduction = kSum})));
}

TEST(FunctionModules, ConvTranspose3d) {
  lockstep::nn::ConvTranspose3d layer(2, 4, {2, 3, 2}, {.stride = 2, .padding = 1, .groups = 2});
  EXPECT_EQ(layer.weight.sizes(), (Shape{2, 2, 2, 3, 2}));
  const Tensor x = make_input({1, 2, 3, 4, 3}, 1, kFloat32);
  EXPECT_TRUE(
      same_bits(layer(x), conv_transpose3d(x, layer.weight, layer.bias, {.stride = 2, .padding = 1, .groups = 2})));
}

TEST(FunctionModules, RnnIsALoopOfItsCell) {
  for (const bool relu : {false, true}) {
    manual_seed(2);
    RNN layers(3, 4, {.relu = relu});
    RNNCell cell(3, 4, true, relu);
    const auto own = layers.parameters(), other = cell.parameters();
    ASSERT_EQ(own.size(), 4u);
    const NoGradGuard no_grad;
    for (std::size_t i = 0; i < 4; ++i) other[i].copy_(own[i]);
    const Tensor x = make_input({5, 2, 3}, 1, kFloat32), start = make_input({1, 2, 4}, 2, kFloat32);
    const auto [outputs, last] = layers(x, start);
    Tensor h = start[0];
    for (std::int64_t t = 0; t < 5; ++t) {
      h = cell(x[t], h);
      expect_close(outputs[t], h, 1e-5, 1e-6);
    }
    expect_close(last[0], h, 1e-5, 1e-6);
  }
}

TEST(FunctionModules, DecodersRunTheirLayersInOrder) {
  manual_seed(3);
  TransformerDecoder decoder(8, 2, 2, {.layer = {.dim_feedforward = 16, .dropout = 0.0}});
  const Tensor x = make_input({2, 3, 8}, 1, kFloat32), memory = make_input({2, 5, 8}, 2, kFloat32);
  EXPECT_TRUE(same_bits(decoder(x, memory), decoder.layers[1](decoder.layers[0](x, memory), memory)));
}

TEST(FunctionModules, ParameterListsAndVectors) {
  struct Net : Module {
    ParameterList list{this, "list"};
  } net;
  net.list.push_back(make_input({2, 3}, 1, kFloat32));
  net.list.push_back(make_input({4}, 2, kFloat32));
  EXPECT_EQ(net.named_parameters()[1].name, "list.1");
  EXPECT_TRUE(net.list[1].is_same(net.named_parameters()[1].tensor));
  EXPECT_NE(error_of([&] { net.list[2]; }).find("ParameterList"), std::string::npos);
  const Tensor all = utils::parameters_to_vector(net.parameters());
  EXPECT_TRUE(same_bits(all, cat({net.list[0].detach().view({6}), net.list[1].detach()})));
  utils::vector_to_parameters(all.detach() * 2.0, net.parameters());
  EXPECT_TRUE(same_bits(utils::parameters_to_vector(net.parameters()).detach(), all.detach() * 2.0));
}

TEST(SmallFunctions, DoWhatTheirNamesSay) {
  const Tensor x = make_input({4, 3}, 1);
  const auto [deviation, mean] = std_mean(x, {0}, 0.0);
  EXPECT_TRUE(same_bits(deviation, std(x, {0}, 0.0)));
  EXPECT_TRUE(same_bits(mean, x.mean({0})));
  const Tensor inverse = pinverse(x);
  expect_close(matmul(matmul(x, inverse), x), x, 1e-10, 1e-10);
  expect_close(matmul(inverse, x), eye(3).to(kFloat64), 1e-10, 1e-10);
  EXPECT_TRUE(same_bits(softmin(x, 1), softmax(-x, 1)));
  const Tensor padded = utils::rnn::pad_sequence({x, x.narrow(0, 0, 2)}, true, 7.0);
  EXPECT_TRUE(same_bits(padded[1], cat({x.narrow(0, 0, 2), full({2, 3}, 7.0, {.dtype = kFloat64})})));
  manual_seed(4);
  const Tensor uniform = rand_like(x), normals = randn_like(x);
  manual_seed(4);
  EXPECT_TRUE(same_bits(uniform, rand({4, 3}, kFloat64)));
  EXPECT_TRUE(same_bits(normals, randn({4, 3}, kFloat64)));
  EXPECT_TRUE(same_bits(x.new_full({2}, 3), full({2}, 3, {.dtype = kFloat64})));
  EXPECT_EQ(x.new_empty({2, 5}).dtype(), kFloat64);
}

}  // namespace
}  // namespace lockstep::nn
