#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

using In = const GoldenInputs&;

Tensor product(In in) {
  return matmul(in["a"], in["b"]);
}
Tensor conv(In in, const Conv2dOptions& options = {}) {
  return conv2d(in["x"], in["w"], in["b"], options);
}

// Arguments as in scripts/golden_cases.py, product().
const GoldenCase kCases[] = {
    {"matmul_dot", product},
    {"matmul_matrix_vector", product},
    {"matmul_vector_matrix", product},
    {"matmul_matrix", product},
    {"matmul_matrix_odd", [](In in) { return in["a"].matmul(in["b"]); }},
    {"matmul_batched", product},
    {"matmul_batched_matrix", product},
    {"matmul_matrix_batched", product},
    {"matmul_batched_vector", product},
    {"matmul_vector_batched", product},
    {"matmul_broadcast", product},
    {"linear", [](In in) { return linear(in["input"], in["weight"], in["bias"]); }},
    {"linear_no_bias", [](In in) { return linear(in["input"], in["weight"]); }},
    {"linear_vector", [](In in) { return linear(in["input"], in["weight"], in["bias"]); }},
    {"linear_3d", [](In in) { return linear(in["input"], in["weight"], in["bias"]); }},
    {"linear_relu", [](In in) { return linear(in["x"], in["w"], in["b"]).relu(); }},

    {"conv2d_3x3", [](In in) { return conv(in); }},
    {"conv2d_1x1", [](In in) { return conv(in); }},
    {"conv2d_5x5", [](In in) { return conv(in); }},
    {"conv2d_padding", [](In in) { return conv(in, {.padding = 1}); }},
    {"conv2d_stride", [](In in) { return conv(in, {.stride = 2, .padding = 1}); }},
    {"conv2d_dilation", [](In in) { return conv(in, {.dilation = 2}); }},
    {"conv2d_groups", [](In in) { return conv(in, {.padding = 1, .groups = 2}); }},
    {"conv2d_depthwise", [](In in) { return conv(in, {.padding = 1, .groups = 4}); }},
    {"conv2d_uneven",
     [](In in) {
       return conv(in, {.stride = {2, 1}, .padding = {0, 2}, .dilation = {1, 2}});
     }},
    {"conv2d_all",
     [](In in) {
       return conv(in, {.stride = {2, 3}, .padding = {2, 1}, .dilation = {2, 1}, .groups = 2});
     }},
    {"conv2d_no_bias", [](In in) { return conv2d(in["input"], in["weight"]); }},
    {"conv2d_relu", [](In in) { return conv2d(in["x"], in["w"], in["b"], {.padding = 1}).relu(); }},

    {"max_pool2d", [](In in) { return max_pool2d(in["x"], 2); }},
    {"max_pool2d_ties", [](In in) { return max_pool2d(in["x"], 2); }},
    {"max_pool2d_stride", [](In in) { return max_pool2d(in["x"], 3, {.stride = 1, .padding = 1}); }},
    {"max_pool2d_ties_overlap", [](In in) { return max_pool2d(in["x"], 3, {.stride = 1, .padding = 1}); }},
    {"max_pool2d_ceil", [](In in) { return max_pool2d(in["x"], 2, {.ceil_mode = true}); }},
    {"max_pool2d_uneven",
     [](In in) {
       return max_pool2d(in["x"], {3, 2}, {.stride = {2, 3}, .padding = {1, 0}});
     }},
    {"max_pool2d_dilation", [](In in) { return max_pool2d(in["x"], 2, {.stride = 1, .dilation = 2}); }},
    {"max_pool2d_unbatched", [](In in) { return max_pool2d(in["x"], 2); }},
    {"avg_pool2d", [](In in) { return avg_pool2d(in["x"], 2); }},
    {"avg_pool2d_stride", [](In in) { return avg_pool2d(in["x"], 3, {.stride = 2, .padding = 1}); }},
    {"avg_pool2d_no_pad",
     [](In in) { return avg_pool2d(in["x"], 3, {.stride = 2, .padding = 1, .count_include_pad = false}); }},
    {"avg_pool2d_ceil", [](In in) { return avg_pool2d(in["x"], 2, {.stride = 2, .ceil_mode = true}); }},
    {"avg_pool2d_divisor",
     [](In in) {
       return avg_pool2d(in["x"], {2, 3}, {.divisor_override = 5});
     }},
    {"adaptive_avg_pool2d_1", [](In in) { return adaptive_avg_pool2d(in["x"], 1); }},
    {"adaptive_avg_pool2d_3x4",
     [](In in) {
       return adaptive_avg_pool2d(in["x"], {3, 4});
     }},
    {"adaptive_avg_pool2d_larger",
     [](In in) {
       return adaptive_avg_pool2d(in["x"], {9, 5});
     }},
};

class GoldenProduct : public ::testing::TestWithParam<GoldenCase> {};
TEST_P(GoldenProduct, EqualsPyTorch) {
  check_golden("product", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, GoldenProduct, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });
TEST(GoldenProductFile, EveryRecordedCaseIsTested) {
  expect_all_recorded_cases("product", kCases);
}

}  // namespace
}  // namespace lockstep::testing
