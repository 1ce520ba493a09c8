#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

using In = const GoldenInputs&;

constexpr Reduction kMean = Reduction::mean, kSum = Reduction::sum, kNone = Reduction::none;

Tensor cross(In in, CrossEntropyOptions options = {}) {
  if (in.has("w")) options.weight = in["w"];
  return cross_entropy(in["x"], in["t"], options);
}
Tensor nll(In in, NllLossOptions options = {}) {
  if (in.has("w")) options.weight = in["w"];
  return nll_loss(in["x"], in["t"], options);
}
Tensor bce(In in, Reduction reduction = kMean) {
  BceWithLogitsOptions options{.reduction = reduction};
  if (in.has("w")) options.weight = in["w"];
  if (in.has("p")) options.pos_weight = in["p"];
  return binary_cross_entropy_with_logits(in["a"], in["t"], options);
}
Tensor batch(In in, bool training, double momentum = 0.1, double eps = 1e-5) {
  BatchNormOptions options{.training = training, .momentum = momentum, .eps = eps};
  if (in.has("w")) options.weight = in["w"];
  if (in.has("b")) options.bias = in["b"];
  return batch_norm(in["x"], in.has("mean") ? in["mean"] : Tensor(), in.has("var") ? in["var"] : Tensor(), options);
}
Tensor layer(In in, const Shape& shape, double eps = 1e-5) {
  LayerNormOptions options{.eps = eps};
  if (in.has("w")) options.weight = in["w"];
  if (in.has("b")) options.bias = in["b"];
  return layer_norm(in["x"], shape, options);
}

// Arguments as in scripts/golden_cases.py, norm().
const GoldenCase kCases[] = {
    {"softmax_dim0", [](In in) { return softmax(in["x"], 0); }},
    {"softmax_dim1", [](In in) { return softmax(in["x"], 1); }},
    {"softmax_dim2", [](In in) { return in["x"].softmax(-1); }},
    {"local_response_norm",
     [](In in) {
       const Tensor& x = in["x"];
       return cat({local_response_norm(x, 3, 0.5, 0.6, 0.9).flatten(), local_response_norm(x.select(2, 0), 2).flatten(),
                   local_response_norm(x.unsqueeze(2), 4, 0.1).flatten()});
     }},
    {"softmax_large", [](In in) { return softmax(in["x"], 1); }},
    {"log_softmax_dim0", [](In in) { return log_softmax(in["x"], 0); }},
    {"log_softmax_dim1", [](In in) { return log_softmax(in["x"], 1); }},
    {"log_softmax_dim2", [](In in) { return in["x"].log_softmax(-1); }},
    {"log_softmax_large", [](In in) { return log_softmax(in["x"], 1); }},

    {"cross_entropy_mean", [](In in) { return cross(in); }},
    {"cross_entropy_sum", [](In in) { return cross(in, {.reduction = kSum}); }},
    {"cross_entropy_none", [](In in) { return cross(in, {.reduction = kNone}); }},
    {"cross_entropy_ignore_mean", [](In in) { return cross(in); }},
    {"cross_entropy_ignore_sum", [](In in) { return cross(in, {.reduction = kSum}); }},
    {"cross_entropy_ignore_none", [](In in) { return cross(in, {.reduction = kNone}); }},
    {"cross_entropy_weight_mean", [](In in) { return cross(in); }},
    {"cross_entropy_weight_sum", [](In in) { return cross(in, {.reduction = kSum}); }},
    {"cross_entropy_weight_none", [](In in) { return cross(in, {.reduction = kNone}); }},
    {"cross_entropy_spatial", [](In in) { return cross(in); }},
    {"cross_entropy_unbatched", [](In in) { return cross(in); }},
    {"cross_entropy_ignore_index", [](In in) { return cross(in, {.ignore_index = 3}); }},
    {"cross_entropy_smooth_mean", [](In in) { return cross(in, {.label_smoothing = 0.1}); }},
    {"cross_entropy_smooth_sum", [](In in) { return cross(in, {.reduction = kSum, .label_smoothing = 0.1}); }},
    {"cross_entropy_smooth_none", [](In in) { return cross(in, {.reduction = kNone, .label_smoothing = 0.1}); }},
    {"cross_entropy_smooth_weight_mean", [](In in) { return cross(in, {.label_smoothing = 0.1}); }},
    {"cross_entropy_smooth_weight_sum", [](In in) { return cross(in, {.reduction = kSum, .label_smoothing = 0.1}); }},
    {"cross_entropy_smooth_weight_none", [](In in) { return cross(in, {.reduction = kNone, .label_smoothing = 0.1}); }},
    {"cross_entropy_smooth_spatial", [](In in) { return cross(in, {.label_smoothing = 0.3}); }},
    {"nll_loss_mean", [](In in) { return nll(in); }},
    {"nll_loss_sum", [](In in) { return nll(in, {.reduction = kSum}); }},
    {"nll_loss_none", [](In in) { return nll(in, {.reduction = kNone}); }},
    {"nll_loss_ignore_mean", [](In in) { return nll(in); }},
    {"nll_loss_ignore_sum", [](In in) { return nll(in, {.reduction = kSum}); }},
    {"nll_loss_ignore_none", [](In in) { return nll(in, {.reduction = kNone}); }},
    {"nll_loss_weight_mean", [](In in) { return nll(in); }},
    {"nll_loss_weight_sum", [](In in) { return nll(in, {.reduction = kSum}); }},
    {"nll_loss_weight_none", [](In in) { return nll(in, {.reduction = kNone}); }},
    {"nll_loss_spatial", [](In in) { return nll(in); }},
    {"nll_loss_unbatched", [](In in) { return nll(in); }},
    {"nll_loss_ignore_index", [](In in) { return nll(in, {.ignore_index = 3}); }},
    {"mse_mean", [](In in) { return mse_loss(in["a"], in["t"]); }},
    {"mse_sum", [](In in) { return mse_loss(in["a"], in["t"], {.reduction = kSum}); }},
    {"mse_none", [](In in) { return mse_loss(in["a"], in["t"], {.reduction = kNone}); }},
    {"bce_mean", [](In in) { return bce(in); }},
    {"bce_sum", [](In in) { return bce(in, kSum); }},
    {"bce_none", [](In in) { return bce(in, kNone); }},
    {"bce_weights_mean", [](In in) { return bce(in); }},
    {"bce_weights_sum", [](In in) { return bce(in, kSum); }},
    {"bce_weights_none", [](In in) { return bce(in, kNone); }},
    {"bce_large", [](In in) { return bce(in); }},

    {"batch_norm_train_2d", [](In in) { return batch(in, true); }},
    {"batch_norm_train_3d", [](In in) { return batch(in, true); }},
    {"batch_norm_train_4d", [](In in) { return batch(in, true); }},
    {"batch_norm_eval_2d", [](In in) { return batch(in, false); }},
    {"batch_norm_eval_3d", [](In in) { return batch(in, false); }},
    {"batch_norm_eval_4d", [](In in) { return batch(in, false); }},
    {"batch_norm_momentum", [](In in) { return batch(in, true, 0.3, 1e-2); }},
    {"batch_norm_no_stats", [](In in) { return batch(in, true); }},
    {"batch_norm_plain", [](In in) { return batch(in, true); }},
    {"batch_norm_eval_plain", [](In in) { return batch(in, false); }},
    {"layer_norm_1", [](In in) { return layer(in, {5}); }},
    {"layer_norm_2",
     [](In in) {
       return layer(in, {4, 5});
     }},
    {"layer_norm_eps", [](In in) { return layer(in, {5}, 0.5); }},
    {"layer_norm_plain",
     [](In in) {
       return layer(in, {3, 4, 5});
     }},
    {"layer_norm_wide", [](In in) { return layer(in, {131}); }},
};

class GoldenNorm : public ::testing::TestWithParam<GoldenCase> {};
TEST_P(GoldenNorm, EqualsPyTorch) {
  check_golden("norm", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, GoldenNorm, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });
TEST(GoldenNormFile, EveryRecordedCaseIsTested) {
  expect_all_recorded_cases("norm", kCases);
}

}  // namespace
}  // namespace lockstep::testing
