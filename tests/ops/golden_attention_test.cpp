#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

using In = const GoldenInputs&;

Tensor attention(In in, AttentionOptions options = {}) {
  if (in.has("m")) options.attn_mask = in["m"];
  return scaled_dot_product_attention(in["q"], in["k"], in["v"], options);
}

// Arguments as in scripts/golden_cases.py, attention().
const GoldenCase kCases[] = {
    {"sdpa", [](In in) { return attention(in); }},
    {"sdpa_scale", [](In in) { return attention(in, {.scale = 0.3}); }},
    {"sdpa_causal", [](In in) { return attention(in, {.is_causal = true}); }},
    {"sdpa_causal_uneven", [](In in) { return attention(in, {.is_causal = true}); }},
    {"sdpa_mask", [](In in) { return attention(in); }},
    {"sdpa_bool_mask", [](In in) { return attention(in); }},
    {"sdpa_mask_gradient", [](In in) { return attention(in); }},
    {"sdpa_grouped", [](In in) { return attention(in, {.enable_gqa = true}); }},
    {"rms_norm_1", [](In in) { return rms_norm(in["x"], {5}, in["w"], 0x1p-52); }},  // recorded in float64
    {"rms_norm_2",
     [](In in) {
       return rms_norm(in["x"], {4, 5}, in["w"], 0.1);
     }},
    {"rms_norm_plain", [](In in) { return rms_norm(in["x"], {5}, {}, 0x1p-52); }},
    {"tril", [](In in) { return tril(in["x"]); }},
    {"tril_diagonal", [](In in) { return tril(in["x"], 2); }},
    {"triu", [](In in) { return triu(in["x"]); }},
    {"triu_diagonal", [](In in) { return triu(in["x"], -1); }},
    {"topk", [](In in) { return topk(in["x"], 3).values; }},
    {"topk_smallest", [](In in) { return topk(in["x"], 2, 0, false).values; }},
    {"topk_indices", [](In in) { return topk(in["x"], 3, 1).indices; }},
    {"sin", [](In in) { return sin(in["x"]); }},
    {"cos", [](In in) { return cos(in["x"]); }},
    {"gelu_tanh", [](In in) { return gelu(in["x"], GeluMode::tanh); }},
};

class GoldenAttention : public ::testing::TestWithParam<GoldenCase> {};
TEST_P(GoldenAttention, EqualsPyTorch) {
  check_golden("attention", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, GoldenAttention, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });
TEST(GoldenAttentionFile, EveryRecordedCaseIsTested) {
  expect_all_recorded_cases("attention", kCases);
}

}  // namespace
}  // namespace lockstep::testing
