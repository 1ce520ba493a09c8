#include "lockstep/autograd/ops/conv2d/conv2d.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::check_op;
using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::TensorList;

struct Case {
  const char* name;
  Shape x, weight;
  bool bias;
  Conv2dOptions options = {};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

struct Results {
  Tensor y, x_grad, weight_grad, bias_grad;
};

// Forward and backward of one case at one dtype.
Results run(const Case& c, DType dtype, bool relu = false) {
  const Tensor x = make_leaf(c.x, 1, dtype), weight = make_leaf(c.weight, 2, dtype);
  const Tensor bias = c.bias ? make_leaf({c.weight[0]}, 3, dtype) : Tensor();
  const Tensor y = relu ? conv2d(x, weight, bias, c.options).relu() : conv2d(x, weight, bias, c.options);
  y.backward(make_input(y.sizes(), 4, dtype));
  return {y, x.grad(), weight.grad(), c.bias ? bias.grad() : Tensor()};
}

Results run_reference(const Case& c, bool relu = false) {
  set_reference_kernels(true);
  Results results = run(c, kFloat64, relu);
  set_reference_kernels(false);
  return results;
}

void expect_equal(const Results& actual, const Results& expected, double tolerance) {
  expect_close(actual.y, expected.y, tolerance, tolerance);
  expect_close(actual.x_grad, expected.x_grad, tolerance, tolerance);
  expect_close(actual.weight_grad, expected.weight_grad, tolerance, tolerance);
  if (expected.bias_grad.defined()) expect_close(actual.bias_grad, expected.bias_grad, tolerance, tolerance);
}

struct PathGuard {
  explicit PathGuard(Conv2dPath path) { set_conv2d_path(path); }
  ~PathGuard() { set_conv2d_path(Conv2dPath::automatic); }
};

class Conv2dCases : public ::testing::TestWithParam<Case> {};

// Every engine that this build has, against plain loops in double. An engine that cannot serve a geometry leaves it to
// another one, as in use.
TEST_P(Conv2dCases, every_engine_equals_the_reference) {
  const Results expected = run_reference(GetParam()), expected_relu = run_reference(GetParam(), true);
  for (const Conv2dPath path :
       {Conv2dPath::automatic, Conv2dPath::im2col, Conv2dPath::own, Conv2dPath::onednn, Conv2dPath::direct}) {
    if (!conv2d_path_available(path)) continue;
    SCOPED_TRACE(static_cast<int>(path));
    const PathGuard guard(path);
    expect_equal(run(GetParam(), kFloat32), expected, 2e-4);
    expect_equal(run(GetParam(), kFloat32, true), expected_relu, 2e-4);
  }
}

TEST_P(Conv2dCases, other_dtypes) {
  const Results expected = run_reference(GetParam());
  expect_equal(run(GetParam(), kFloat64), expected, 1e-11);
  for (const DType dtype : {kFloat16, kBFloat16}) {
    const Results fast = run(GetParam(), dtype);
    set_reference_kernels(true);
    const Results plain = run(GetParam(), dtype);
    set_reference_kernels(false);
    EXPECT_EQ(fast.y.dtype(), dtype);
    expect_equal(fast, plain, dtype == kFloat16 ? 4e-3 : 3e-2);
    expect_close(fast.y, expected.y, 0.05, 0.3);
  }
}

TEST_P(Conv2dCases, thread_count_does_not_change_bits) {
  const int before = num_threads();
  for (const Conv2dPath path :
       {Conv2dPath::automatic, Conv2dPath::im2col, Conv2dPath::own, Conv2dPath::onednn, Conv2dPath::direct}) {
    if (!conv2d_path_available(path)) continue;
    SCOPED_TRACE(static_cast<int>(path));
    const PathGuard guard(path);
    set_num_threads(1);
    const Results one = run(GetParam(), kFloat32);
    set_num_threads(3);
    const Results three = run(GetParam(), kFloat32);
    set_num_threads(before);
    EXPECT_EQ(one.y.to_vector<float>(), three.y.to_vector<float>());
    EXPECT_EQ(one.x_grad.to_vector<float>(), three.x_grad.to_vector<float>());
    EXPECT_EQ(one.weight_grad.to_vector<float>(), three.weight_grad.to_vector<float>());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Geometry, Conv2dCases,
    ::testing::Values(
        Case{"lenet1", {5, 1, 28, 28}, {10, 1, 5, 5}, true}, Case{"lenet2", {9, 10, 12, 12}, {20, 10, 5, 5}, true},
        Case{"cnn1", {3, 1, 28, 28}, {32, 1, 3, 3}, true}, Case{"cnn2", {2, 32, 26, 26}, {64, 32, 3, 3}, true},
        Case{"many_images", {70, 1, 28, 28}, {4, 1, 5, 5}, true}, Case{"no_bias", {2, 3, 9, 9}, {5, 3, 3, 3}, false},
        Case{"padding", {2, 3, 9, 10}, {5, 3, 3, 3}, true, {.padding = 1}},
        Case{"padding_hw", {2, 3, 9, 16}, {6, 3, 3, 5}, true, {.padding = {1, 2}}},
        Case{"wide_padding", {2, 2, 4, 5}, {3, 2, 3, 3}, true, {.padding = 4}},
        Case{"stride", {2, 3, 11, 12}, {5, 3, 3, 3}, true, {.stride = 2}},
        Case{"stride_hw", {2, 3, 11, 12}, {5, 3, 3, 2}, true, {.stride = {3, 2}, .padding = {0, 1}}},
        Case{"dilation", {2, 3, 11, 12}, {5, 3, 3, 3}, true, {.padding = 1, .dilation = 2}},
        Case{"groups", {2, 4, 8, 9}, {6, 2, 3, 3}, true, {.padding = 1, .groups = 2}},
        Case{"depthwise", {3, 6, 8, 8}, {6, 1, 3, 3}, true, {.padding = 1, .groups = 6}},
        Case{"all_options",
             {3, 4, 13, 12},
             {8, 2, 3, 2},
             true,
             {.stride = {2, 3}, .padding = {2, 1}, .dilation = {2, 1}, .groups = 2}},
        Case{"one_by_one", {3, 8, 7, 7}, {5, 8, 1, 1}, true}, Case{"kernel_is_image", {3, 2, 5, 5}, {4, 2, 5, 5}, true},
        Case{"seven_wide", {2, 2, 16, 17}, {7, 2, 7, 7}, true, {.padding = 3}},
        Case{"six_wide", {2, 2, 9, 13}, {3, 2, 2, 6}, true}, Case{"one_pixel", {1, 1, 1, 1}, {1, 1, 1, 1}, true},
        Case{"narrow", {2, 3, 10, 3}, {4, 3, 3, 2}, true},
        Case{"few_channels", {3, 8, 14, 14}, {16, 8, 3, 3}, true, {.padding = 1}},
        Case{"few_to_fewer", {3, 16, 9, 13}, {6, 16, 5, 5}, true},
        Case{"sixteen", {3, 16, 12, 14}, {16, 16, 3, 3}, true, {.padding = 1}},
        Case{"groups_of_four", {5, 16, 9, 11}, {32, 4, 3, 3}, true, {.stride = 2, .padding = 1, .groups = 4}}),
    case_name);

class Conv2dOperation : public ::testing::TestWithParam<Case> {};

TEST_P(Conv2dOperation, values_and_gradients) {
  const Case& c = GetParam();
  for (const bool relu : {false, true})
    check_op({.name = c.name,
              .inputs =
                  [&] {
                    TensorList inputs = {make_leaf(c.x, 1), make_leaf(c.weight, 2)};
                    if (c.bias) inputs.push_back(make_leaf({c.weight[0]}, 3));
                    return inputs;
                  },
              .run =
                  [&](const TensorList& in) {
                    const Tensor bias = in.size() > 2 ? in[2] : Tensor();
                    const Tensor y = conv2d(in[0], in[1], bias, c.options);
                    return TensorList{relu ? y.relu() : y};
                  },
              .slack = 4.0});
}

INSTANTIATE_TEST_SUITE_P(
    Small, Conv2dOperation,
    ::testing::Values(
        Case{"plain", {2, 2, 5, 4}, {3, 2, 3, 2}, true}, Case{"one_image", {2, 4, 4}, {2, 2, 3, 3}, false},
        Case{"padding_stride", {2, 2, 5, 6}, {2, 2, 3, 3}, false, {.stride = 2, .padding = 1}},
        Case{"groups_dilation", {1, 4, 6, 5}, {4, 2, 2, 2}, true, {.padding = {1, 0}, .dilation = 2, .groups = 2}}),
    case_name);

TEST(Conv2d, known_values) {
  // 3x3 image, 2x2 kernel.
  const Tensor x = tensor<double>({1, 2, 3, 4, 5, 6, 7, 8, 9}).as_strided({1, 1, 3, 3}, {9, 9, 3, 1}, 0);
  const Tensor w = tensor<double>({1, 0, 0, -1}).as_strided({1, 1, 2, 2}, {4, 4, 2, 1}, 0);
  EXPECT_EQ(conv2d(x, w, tensor<double>({0.5})).to_vector<double>(), (std::vector<double>{-3.5, -3.5, -3.5, -3.5}));
  EXPECT_EQ(conv2d(x, w, {}, {.stride = 2, .padding = 1}).to_vector<double>(), (std::vector<double>{-1, -3, -7, -4}));
}

TEST(Conv2d, one_image_needs_no_batch) {
  const Tensor x = make_input({2, 6, 6}, 1), w = make_input({3, 2, 3, 3}, 2);
  expect_close(conv2d(x, w), conv2d(x.unsqueeze(0), w)[0], 0, 0);
}

TEST(Conv2d, empty_sizes) {
  const auto options = TensorOptions{.dtype = kFloat64};
  EXPECT_EQ(conv2d(empty({0, 2, 5, 5}, options), make_input({3, 2, 3, 3})).sizes(), Shape({0, 3, 3, 3}));
  EXPECT_EQ(conv2d(make_input({2, 2, 5, 5}), empty({0, 2, 3, 3}, options)).sizes(), Shape({2, 0, 3, 3}));
  const Tensor no_channels =
      conv2d(empty({1, 0, 3, 3}, options), empty({2, 0, 2, 2}, options), tensor<double>({1, -2}));
  EXPECT_EQ(no_channels.to_vector<double>(), (std::vector<double>{1, 1, 1, 1, -2, -2, -2, -2}));
  const Tensor w = make_leaf({3, 2, 3, 3}), x = empty({0, 2, 5, 5}, options);
  conv2d(x, w).backward(empty({0, 3, 3, 3}, options));
  expect_close(w.grad(), zeros({3, 2, 3, 3}, options));
}

TEST(Conv2d, a_first_layer_computes_no_input_gradient) {
  const Tensor x = make_input({2, 1, 6, 6}, 1, kFloat32), w = make_leaf({2, 1, 3, 3}, 2, kFloat32);
  conv2d(x, w).backward(ones({2, 2, 4, 4}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(w.grad().defined());
}

TEST(Conv2d, errors_name_the_sizes) {
  const auto message = [](const Tensor& x, const Tensor& w, const Tensor& b = {}, const Conv2dOptions& options = {}) {
    return testing::error_of([&] { conv2d(x, w, b, options); });
  };
  const Tensor x = ones({1, 4, 5, 5}), w = ones({2, 4, 3, 3});
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(message(ones({5, 5}), w), "[n, channels, height, width] or [channels, height, width], found [5, 5]");
  has(message(x, ones({2, 3, 3, 3})), "weight of 4 channels");
  has(message(x, ones({2, 4, 3})), "[out, in / groups, kh, kw]");
  has(message(x, ones({2, 4, 7, 3})), "kernel is larger than the image: height 5");
  has(message(x, ones({2, 4, 3, 0})), "kernel is empty");
  has(message(x, w, ones({3})), "bias of sizes [2], found [3]");
  has(message(x, w, {}, {.stride = 0}), "stride 0x0");
  has(message(x, w, {}, {.padding = {-1, 0}}), "padding -1x0");
  has(message(x, w, {}, {.groups = 3}), "groups must divide");
  has(message(x, ones({2, 4, 3, 3}, {.dtype = kFloat64})), "weight is float64");
  has(message(x, ones({2, 4, 3, 3}, {.device = {kCPU, 1}})), "cpu:1");
  has(message(ones({1, 4, 5, 5}, {.dtype = kInt64}), w), "floating-point");
}

}  // namespace
}  // namespace lockstep
