#include <gtest/gtest.h>

#include <functional>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

Tensor cubed(const Tensor& x) {
  return pow(x, 3.0);
}

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

struct Case {
  const char* name;
  std::vector<Shape> inputs;
  Function function;
  double low = -1.0, high = 1.0;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

/// The gradients of a weighted sum of `function` of the inputs, one behind the other.
Tensor gradients(const Function& function, const std::vector<Tensor>& inputs, bool recorded) {
  const EnableGradGuard recording;
  const Tensor out = function(inputs);
  const Tensor loss = (out * make_input(out.sizes(), 77)).sum();
  std::vector<Tensor> flat;
  for (const Tensor& each : grad({loss}, inputs, {}, {.allow_unused = true, .create_graph = recorded}))
    if (each.defined()) flat.push_back(each.reshape({-1}));
  return cat(flat);
}

class SecondDerivatives : public ::testing::TestWithParam<Case> {};

TEST_P(SecondDerivatives, MatchCentralDifferences) {
  const Case& c = GetParam();
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i)
    inputs.push_back(make_leaf(c.inputs[i], static_cast<std::uint32_t>(i + 1), kFloat64, c.low, c.high));
  expect_close(gradients(c.function, inputs, true).detach(), gradients(c.function, inputs, false), 1e-9, 1e-11);
  gradcheck([&](const std::vector<Tensor>& in) { return gradients(c.function, in, true); }, inputs);
}

Case unary_case(const char* name, Tensor (*function)(const Tensor&), double low = -1.5, double high = 1.5) {
  return {name, {{2, 3}}, [function](const auto& in) { return function(in[0]); }, low, high};
}

#define UNARY(name, ...) \
  unary_case(            \
      #name, [](const Tensor& x) { return name(x); }, ##__VA_ARGS__)

INSTANTIATE_TEST_SUITE_P(
    Unary, SecondDerivatives,
    ::testing::Values(UNARY(exp), UNARY(log, 0.5, 2.0), UNARY(sqrt, 0.5, 2.0), UNARY(rsqrt, 0.5, 2.0),
                      UNARY(reciprocal, 0.5, 2.0), UNARY(square), UNARY(tanh), UNARY(sigmoid), UNARY(gelu), UNARY(silu),
                      UNARY(sin), UNARY(cos), UNARY(softplus), UNARY(softsign), UNARY(hardswish), UNARY(mish),
                      UNARY(erf), UNARY(log1p, -0.5, 1.0), UNARY(expm1), UNARY(log2, 0.5, 2.0), UNARY(log10, 0.5, 2.0),
                      UNARY(tan, -1.0, 1.0), UNARY(sinh), UNARY(cosh), UNARY(atan), UNARY(asin, -0.9, 0.9),
                      UNARY(acos, -0.9, 0.9), UNARY(asinh), UNARY(acosh, 1.2, 3.0), UNARY(atanh, -0.9, 0.9),
                      UNARY(erfinv, -0.8, 0.8), UNARY(abs), UNARY(selu),
                      Case{"gelu_tanh", {{2, 3}}, [](const auto& in) { return gelu(in[0], GeluMode::tanh); }, -2, 2},
                      Case{"pow", {{2, 3}}, [](const auto& in) { return pow(in[0], 2.5); }, 0.5, 2.0},
                      Case{"elu", {{2, 3}}, [](const auto& in) { return elu(in[0], 0.7); }, -1, 1},
                      Case{"celu", {{2, 3}}, [](const auto& in) { return celu(in[0], 0.7); }, -1, 1},
                      Case{
                          "leaky_relu", {{2, 3}}, [](const auto& in) { return square(leaky_relu(in[0], 0.2)); }, -1, 1},
                      Case{"relu", {{2, 3}}, [](const auto& in) { return square(relu(in[0]) - relu6(-in[0])); }},
                      Case{"clamp", {{2, 3}}, [](const auto& in) { return cubed(clamp(in[0], -0.5, 0.5)); }, -1, 1}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Binary, SecondDerivatives,
    ::testing::Values(
        Case{"add", {{2, 3}, {3}}, [](const auto& in) { return square(in[0] + in[1]); }},
        Case{"sub", {{2, 1}, {3}}, [](const auto& in) { return cubed(in[0] - in[1]); }},
        Case{"mul", {{2, 3}, {2, 1}}, [](const auto& in) { return in[0] * in[1] * in[0]; }},
        Case{"div", {{2, 3}, {3}}, [](const auto& in) { return in[0] / in[1]; }, 0.5, 2.0},
        Case{"numbers",
             {{2, 3}},
             [](const auto& in) { return (2.0 / in[0] - in[0] / 3.0) * (1.0 - 2.0 * in[0]); },
             0.5,
             2},
        Case{"power", {{2, 3}, {3}}, [](const auto& in) { return pow(in[0], in[1]); }, 0.5, 2.0},
        Case{"power_of_number", {{2, 3}}, [](const auto& in) { return pow(1.7, in[0]); }},
        Case{"maximum", {{2, 3}, {2, 3}}, [](const auto& in) { return square(maximum(in[0], in[1])); }},
        Case{"atan2", {{2, 3}, {3}}, [](const auto& in) { return atan2(in[0], in[1]); }, 0.5, 2.0},
        Case{"hypot", {{2, 3}, {3}}, [](const auto& in) { return hypot(in[0], in[1]); }, 0.5, 2.0},
        Case{"where", {{2, 3}, {3}}, [](const auto& in) { return square(where(in[0] > 0.0, in[0], in[1] * in[0])); }},
        Case{"clamp_by_tensors",
             {{2, 3}, {2, 3}, {2, 3}},
             [](const auto& in) { return square(clamp(in[0], in[1], in[2])); }},
        Case{"in_place",
             {{2, 3}, {3}},
             [](const auto& in) {
               const Tensor x = in[0] * 2.0;
               x.mul_(in[1]);
               x.add_(in[1] * in[1]);
               return square(x);
             }},
        Case{"through_a_view",
             {{2, 3}, {3}},
             [](const auto& in) {
               const Tensor x = in[0] * 2.0, row = x[1];
               row.mul_(in[1]);
               x[0] = in[1] * in[1];
               return square(x).sum(0) + row * in[1];
             }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Products, SecondDerivatives,
    ::testing::Values(
        Case{"matmul", {{2, 3}, {3, 2}}, [](const auto& in) { return square(matmul(in[0], in[1])); }},
        Case{"matmul_of_batches", {{2, 2, 3}, {3, 2}}, [](const auto& in) { return matmul(in[0], in[1]); }},
        Case{"matmul_broadcast", {{2, 1, 2, 3}, {2, 3, 2}}, [](const auto& in) { return matmul(in[0], in[1]); }},
        Case{"matmul_of_vectors", {{3}, {2, 3, 2}}, [](const auto& in) { return matmul(in[0], in[1]); }},
        Case{"linear", {{2, 2, 3}, {2, 3}, {2}}, [](const auto& in) { return tanh(linear(in[0], in[1], in[2])); }},
        Case{"linear_relu",
             {{4, 3}, {2, 3}, {2}},
             [](const auto& in) { return square(relu(linear(in[0], in[1], in[2]))); }},
        Case{"conv2d",
             {{2, 2, 5, 4}, {3, 2, 3, 2}, {3}},
             [](const auto& in) {
               return conv2d(in[0], in[1], in[2], {.stride = {2, 1}, .padding = {1, 0}});
             }},
        Case{"conv2d_of_groups",
             {{1, 4, 5, 5}, {4, 2, 2, 2}},
             [](const auto& in) { return tanh(conv2d(in[0], in[1], {}, {.dilation = 2, .groups = 2})); }},
        Case{"conv1d", {{1, 2, 6}, {2, 2, 3}}, [](const auto& in) { return square(conv1d(in[0], in[1])); }},
        Case{"conv_transpose2d",
             {{1, 2, 3, 3}, {2, 2, 3, 3}, {2}},
             [](const auto& in) {
               return square(conv_transpose2d(in[0], in[1], in[2], {.stride = 2, .padding = 1, .output_padding = 1}));
             }},
        Case{"solve",
             {{2, 2}, {2, 1}},
             [](const auto& in) { return linalg::solve(in[0] + 3.0 * eye(2, 2, {.dtype = kFloat64}), in[1]); }},
        Case{"slogdet",
             {{2, 2}},
             [](const auto& in) { return slogdet(in[0] + 3.0 * eye(2, 2, {.dtype = kFloat64})).logabsdet; }},
        Case{"cholesky",
             {{2, 2}},
             [](const auto& in) {
               return linalg::cholesky(matmul(in[0], in[0].t()) + eye(2, 2, {.dtype = kFloat64}));
             }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Shapes, SecondDerivatives,
    ::testing::Values(
        Case{"views",
             {{2, 3, 2}},
             [](const auto& in) {
               return square(in[0].transpose(0, 1).reshape({3, 4}).slice(1, 1, 4, 2).unsqueeze(0).expand({2, 3, 2}));
             }},
        Case{"select_and_diagonal",
             {{3, 3}},
             [](const auto& in) { return cubed(diagonal(in[0]) + in[0].select(0, 1)); }},
        Case{"diag", {{3}}, [](const auto& in) { return cubed(diag(in[0], 1)); }},
        Case{"scatter_with_repeated_places",
             {{2, 3}, {2, 2}},
             [](const auto& in) {
               return cubed(scatter(in[0], 1, tensor<std::int64_t>({2, 2, 0, 1}).view({2, 2}), in[1]));
             }},
        Case{"scatter_reduce_amax",
             {{2, 3}, {2, 2}},
             [](const auto& in) {
               return cubed(scatter_reduce(in[0], 1, tensor<std::int64_t>({2, 2, 0, 1}).view({2, 2}), in[1], "amax"));
             }},
        Case{"masked_scatter",
             {{3}, {2}},
             [](const auto& in) {
               return cubed(masked_scatter(in[0], tensor<std::int64_t>({1, 0, 1}) == 1, in[1]));
             }},
        Case{"diag_embed", {{2, 3}}, [](const auto& in) { return cubed(diag_embed(in[0], -1, 0, 2)); }},
        Case{"cat",
             {{2, 1}, {2, 2}},
             [](const auto& in) {
               return square(cat({in[0], in[1], in[0]}, 1));
             }},
        Case{"split", {{4, 2}}, [](const auto& in) { return split(square(in[0]), 2)[1] * split(in[0], 2)[0]; }},
        Case{"index_select",
             {{4, 2}},
             [](const auto& in) {
               return square(index_select(in[0], 0, tensor<std::int64_t>({3, 1, 3})));
             }},
        Case{"gather",
             {{3, 2}},
             [](const auto& in) {
               return square(gather(in[0], 0, tensor<std::int64_t>({2, 0, 2, 1}).view({2, 2})));
             }},
        Case{"scatter_add",
             {{3, 2}, {2, 2}},
             [](const auto& in) {
               return square(scatter_add(in[0], 0, tensor<std::int64_t>({2, 0, 2, 1}).view({2, 2}), in[1]));
             }},
        Case{"index_add",
             {{3, 2}, {2, 2}},
             [](const auto& in) {
               return square(index_add(in[0], 0, tensor<std::int64_t>({2, 2}), in[1]));
             }},
        Case{"embedding",
             {{4, 2}},
             [](const auto& in) {
               return square(embedding(in[0], tensor<std::int64_t>({1, 3, 1})));
             }},
        Case{"pad",
             {{2, 3}},
             [](const auto& in) {
               return square(pad(in[0], {1, -1, 0, 2}));
             }},
        Case{"triangle", {{3, 3}}, [](const auto& in) { return square(tril(in[0]) + triu(in[0], 1)); }},
        Case{"cumsum", {{2, 3}}, [](const auto& in) { return square(cumsum(in[0], 1)); }},
        Case{"cumprod", {{3, 4}}, [](const auto& in) { return tanh(cumprod(in[0], 0)) * cumprod(in[0], 1); }},
        Case{"logcumsumexp", {{2, 4}}, [](const auto& in) { return square(logcumsumexp(in[0], 1)); }},
        Case{"clone_and_cast", {{2, 3}}, [](const auto& in) { return square(in[0].clone().to(kFloat64)); }},
        Case{"interpolate",
             {{1, 1, 2, 3}},
             [](const auto& in) { return square(interpolate(in[0], {.scale_factor = 2, .mode = kBilinear})); }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Reductions, SecondDerivatives,
    ::testing::Values(
        Case{"sum", {{2, 3}}, [](const auto& in) { return square(sum(in[0], {1})); }},
        Case{"mean", {{2, 3}}, [](const auto& in) { return cubed(mean(in[0], {0}, true)); }},
        Case{"var", {{2, 3}}, [](const auto& in) { return square(var(in[0], {1})); }},
        Case{"max", {{2, 3}}, [](const auto& in) { return square(max(in[0], {1})); }},
        Case{"logsumexp", {{2, 3}}, [](const auto& in) { return logsumexp(in[0], {1}); }},
        Case{"prod", {{2, 3}}, [](const auto& in) { return square(prod(in[0])) + prod(in[0], 1); }},
        Case{"norm", {{2, 3}}, [](const auto& in) { return norm(in[0], {1}); }},
        Case{"norm_of_order_3", {{2, 3}}, [](const auto& in) { return vector_norm(in[0], 3.0, {1}); }},
        Case{"softmax", {{2, 3, 2}}, [](const auto& in) { return softmax(in[0], 1); }},
        Case{"log_softmax", {{2, 3}}, [](const auto& in) { return log_softmax(in[0], -1); }},
        Case{"max_pool2d", {{1, 2, 4, 4}}, [](const auto& in) { return square(max_pool2d(in[0], 2)); }},
        Case{"max_pool2d_of_windows",
             {{1, 1, 5, 5}},
             [](const auto& in) { return square(max_pool2d(relu(in[0]), 3, {.stride = 2, .padding = 1})); }},
        Case{"avg_pool2d", {{1, 1, 4, 4}}, [](const auto& in) { return square(avg_pool2d(in[0], 3, {.stride = 1})); }},
        Case{"adaptive_avg_pool2d",
             {{1, 1, 4, 3}},
             [](const auto& in) { return square(adaptive_avg_pool2d(in[0], 2)); }}),
    [](const auto& info) { return info.param.name; });

const Tensor kClasses = tensor<std::int64_t>({2, 0, 1, 2});

INSTANTIATE_TEST_SUITE_P(
    Nets, SecondDerivatives,
    ::testing::Values(
        Case{"layer_norm",
             {{3, 4}, {4}, {4}},
             [](const auto& in) { return layer_norm(in[0], {4}, {.weight = in[1], .bias = in[2]}); }},
        Case{"group_norm",
             {{2, 4, 3}, {4}, {4}},
             [](const auto& in) { return group_norm(in[0], 2, {.weight = in[1], .bias = in[2]}); }},
        Case{"rms_norm", {{3, 4}, {4}}, [](const auto& in) { return rms_norm(in[0], {4}, in[1]); }},
        Case{"batch_norm",
             {{4, 2, 3}, {2}, {2}},
             [](const auto& in) {
               return batch_norm(in[0], {}, {}, {.weight = in[1], .bias = in[2], .training = true});
             }},
        Case{"batch_norm_at_rest",
             {{4, 2}, {2}},
             [](const auto& in) {
               const Tensor mean = full({2}, 0.3, kFloat64), variance = full({2}, 1.7, kFloat64);
               return square(batch_norm(in[0], mean, variance, {.weight = in[1], .training = false}));
             }},
        Case{"cross_entropy", {{4, 3}}, [](const auto& in) { return cross_entropy(in[0], kClasses); }},
        Case{"cross_entropy_smoothed",
             {{4, 3}},
             [](const auto& in) {
               return cross_entropy(in[0], kClasses,
                                    {.reduction = Reduction::none, .ignore_index = 1, .label_smoothing = 0.2});
             }},
        Case{"cross_entropy_weighted",
             {{4, 3}},
             [](const auto& in) {
               return cross_entropy(
                   in[0], kClasses,
                   {.ignore_index = 1, .label_smoothing = 0.1, .weight = tensor<double>({0.5, 1.5, 2.0})});
             }},
        Case{"attention",
             {{2, 3, 4}, {2, 5, 4}, {5, 2}},
             [](const auto& in) { return scaled_dot_product_attention(in[0], in[1], in[2]); }},
        Case{"attention_causal",
             {{1, 2, 3, 2}, {1, 1, 3, 2}},
             [](const auto& in) {
               return scaled_dot_product_attention(in[0], in[1], in[1], {.is_causal = true, .enable_gqa = true});
             }},
        Case{"attention_masked",
             {{2, 2, 2}, {2, 3, 2}},
             [](const auto& in) {
               const Tensor mask = tensor<std::int64_t>({1, 0, 1, 0, 0, 0}).view({2, 3}).to(kBool);
               return scaled_dot_product_attention(in[0], in[1], in[1], {.attn_mask = mask});
             }},
        Case{"packed_attention",
             {{2, 3, 8}},
             [](const auto& in) { return packed_attention(in[0], 2, 1, {.is_causal = true}); }},
        Case{"cross_entropy_of_pixels",
             {{2, 3, 2}},
             [](const auto& in) {
               return cross_entropy(in[0], kClasses.view({2, 2}), {.reduction = Reduction::sum});
             }},
        Case{"nll_loss", {{4, 3}}, [](const auto& in) { return nll_loss(log_softmax(in[0], 1), kClasses); }},
        Case{"mse_loss", {{2, 3}, {2, 3}}, [](const auto& in) { return mse_loss(in[0], in[1]); }},
        Case{"huber_loss",
             {{2, 3}, {2, 3}},
             [](const auto& in) { return huber_loss(in[0], in[1], 0.5, Reduction::sum); }},
        Case{"smooth_l1_loss", {{2, 3}, {2, 3}}, [](const auto& in) { return smooth_l1_loss(in[0], in[1], 0.5); }},
        Case{"binary_cross_entropy",
             {{2, 3}, {2, 3}},
             [](const auto& in) { return binary_cross_entropy(in[0], in[1]); },
             0.1,
             0.9},
        Case{"binary_cross_entropy_with_logits",
             {{2, 3}, {2, 3}},
             [](const auto& in) { return binary_cross_entropy_with_logits(in[0], in[1]); },
             0.1,
             0.9}),
    [](const auto& info) { return info.param.name; });

TEST(SecondDerivative, OrdersMayBePiledUp) {
  const Tensor x = make_leaf({3}, 1, kFloat64, 0.5, 1.5);
  Tensor y = sin(x);
  const double signs[] = {1, -1, -1, 1, 1};
  for (int order = 1; order <= 5; ++order) {
    y = grad({y.sum()}, {x}, {}, {.create_graph = true})[0];
    const Tensor expected = (order % 2 ? cos(x) : sin(x)).detach() * signs[order - 1];
    expect_close(y.detach(), expected, 1e-12, 1e-14);
  }
}

TEST(SecondDerivative, TakesTheArgumentsOfLibtorch) {
  const Tensor x = make_leaf({3}, 1, kFloat64), ones = ones_like(x);
  const Tensor first = autograd::grad({cubed(x)}, {x}, {ones}, /*retain_graph=*/std::nullopt, /*create_graph=*/true)[0];
  expect_close(autograd::grad({first}, {x}, {ones}, true)[0], 6.0 * x.detach());
  const Tensor unused = make_leaf({1}, 2, kFloat64);
  EXPECT_FALSE(autograd::grad({cubed(x)}, {unused}, {ones}, false, false, true)[0].defined());
}

TEST(SecondDerivative, APenaltyReachesTheParameters) {
  const Tensor w = make_leaf({2, 3}, 1, kFloat64), b = make_leaf({2}, 2, kFloat64), x = make_leaf({4, 3}, 3, kFloat64);
  const auto critic = [&] { return tanh(linear(x, w, b)).sum(); };
  const auto penalty = [&] {
    return (norm(grad({critic()}, {x}, {}, {.create_graph = true})[0], {1}) - 1.0).square().mean();
  };
  const Tensor value = penalty();
  value.backward();
  const Tensor found = w.grad().clone(), of_bias = b.grad().clone();
  // Central differences of the penalty itself.
  for (const Tensor& t : {w, b}) {
    const Tensor& gradient = t.is_same(w) ? found : of_bias;
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      double& element = t.data<double>()[i];
      const double before = element;
      element = before + 1e-6;
      const double above = penalty().item();
      element = before - 1e-6;
      const double below = penalty().item();
      element = before;
      EXPECT_NEAR((above - below) / 2e-6, gradient.data<double>()[i], 1e-7);
    }
  }
}

TEST(SecondDerivative, WhatHasNoneIsNamed) {
  const Tensor x = make_leaf({3}, 1, kFloat64);
  const std::string error = error_of([&] { grad({digamma(x).sum()}, {x}, {}, {.create_graph = true}); });
  EXPECT_NE(error.find("[grad] create_graph: "), std::string::npos) << error;
  EXPECT_NE(error.find(" has no second derivative"), std::string::npos) << error;
  grad({digamma(x).sum()}, {x});
}

TEST(SecondDerivative, TheGraphIsKept) {
  const Tensor x = make_leaf({3}, 1, kFloat64);
  const Tensor y = cubed(x).sum();
  const Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
  expect_close(grad({y}, {x}, {}, {.retain_graph = true})[0], first.detach());
  first.sum().backward();
  expect_close(x.grad(), 6.0 * x.detach());
}

}  // namespace
}  // namespace lockstep::testing
