#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/core/kernel_table.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  const char* name;
  Shape x;
  Size2d kernel;
  MaxPool2dOptions options;
  Shape out;
};

// Maximum and its position by plain loops over one plane.
Tensor expected_pool(const Case& c, const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  const std::int64_t h = x.size(-2), w = x.size(-1), oh = c.out[c.out.dim() - 2], ow = c.out.back();
  const std::int64_t sh = c.options.stride.h ? c.options.stride.h : c.kernel.h;
  const std::int64_t sw = c.options.stride.w ? c.options.stride.w : c.kernel.w;
  std::vector<double> out;
  for (std::int64_t i = 0; i < c.out.numel(); ++i) {
    double best = -std::numeric_limits<double>::infinity();
    for (std::int64_t ky = 0; ky < c.kernel.h; ++ky)
      for (std::int64_t kx = 0; kx < c.kernel.w; ++kx) {
        const std::int64_t y = i / ow % oh * sh - c.options.padding.h + ky * c.options.dilation.h;
        const std::int64_t column = i % ow * sw - c.options.padding.w + kx * c.options.dilation.w;
        if (y < 0 || y >= h || column < 0 || column >= w) continue;
        best = std::max(best, values[static_cast<std::size_t>((i / (oh * ow) * h + y) * w + column)]);
      }
    out.push_back(best);
  }
  return tensor(out).as_strided(c.out, contiguous_strides(c.out), 0);
}

OpCase pool(const Case& c) {
  return {.name = c.name,
          .inputs = [=] { return TensorList{make_leaf(c.x)}; },
          .run = [=](const TensorList& in) { return TensorList{max_pool2d(in[0], c.kernel, c.options)}; },
          .expected = [=](const TensorList& in) { return TensorList{expected_pool(c, in[0])}; }};
}

class MaxPool2dCases : public ::testing::TestWithParam<Case> {};

TEST_P(MaxPool2dCases, values_and_gradients) {
  check_op(pool(GetParam()));
}

// The element at each index is the maximum.
TEST_P(MaxPool2dCases, indices) {
  const Case& c = GetParam();
  const Tensor x = make_input(c.x);
  const auto [out, indices] = max_pool2d_with_indices(x, c.kernel, c.options);
  expect_close(out, max_pool2d(x, c.kernel, c.options), 0, 0);
  ASSERT_EQ(indices.dtype(), kInt64);
  ASSERT_EQ(to_string(indices.sizes()), to_string(c.out));
  const std::vector<double> values = x.to_vector<double>(), maxima = out.to_vector<double>();
  const std::vector<std::int64_t> at = indices.to_vector<std::int64_t>();
  const std::int64_t image = x.size(-1) * x.size(-2), windows = out.size(-1) * out.size(-2);
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (!std::isfinite(maxima[i])) continue;
    ASSERT_LT(at[i], image);
    EXPECT_EQ(values[static_cast<std::size_t>(static_cast<std::int64_t>(i) / windows * image + at[i])], maxima[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Windows, MaxPool2dCases,
    ::testing::Values(
        Case{"two", {2, 3, 6, 8}, 2, {}, {2, 3, 3, 4}}, Case{"two_wide", {1, 2, 4, 38}, 2, {}, {1, 2, 2, 19}},
        Case{"odd_sides", {2, 2, 7, 5}, 2, {}, {2, 2, 3, 2}}, Case{"three_dims", {2, 4, 4}, 2, {}, {2, 2, 2}},
        Case{"window_beyond", {1, 2, 2, 5}, 2, {.dilation = 2, .ceil_mode = true}, {1, 2, 1, 2}},
        Case{"large_window", {1, 1, 2, 9}, 3, {.stride = 2, .ceil_mode = true}, {1, 1, 1, 4}},
        Case{"overlap", {1, 2, 6, 7}, 3, {.stride = 1}, {1, 2, 4, 5}},
        Case{"padding", {1, 2, 5, 6}, 3, {.stride = 2, .padding = 1}, {1, 2, 3, 3}},
        Case{"ceil", {1, 2, 7, 5}, 2, {.ceil_mode = true}, {1, 2, 4, 3}},
        Case{"ceil_padding", {1, 1, 6, 6}, 3, {.stride = 2, .padding = 1, .ceil_mode = true}, {1, 1, 4, 4}},
        Case{"dilation", {1, 2, 7, 8}, 2, {.stride = 1, .dilation = 2}, {1, 2, 5, 6}},
        Case{"mixed", {2, 1, 8, 9}, {3, 2}, {.stride = {2, 3}, .padding = {1, 0}}, {2, 1, 4, 3}},
        Case{"whole_image", {2, 2, 17, 18}, {17, 18}, {}, {2, 2, 1, 1}},
        Case{"empty_batch", {0, 2, 4, 4}, 2, {}, {0, 2, 2, 2}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(MaxPool2d, nan_wins_and_ties_go_to_the_first) {
  const double nan = std::nan("");
  for (int position = 0; position < 4; ++position) {
    std::vector<float> values = {5, 1, 2, 3};
    values[static_cast<std::size_t>(position)] = static_cast<float>(nan);
    const Tensor x = tensor(values).as_strided({1, 2, 2}, {4, 2, 1}, 0);
    EXPECT_TRUE(std::isnan(max_pool2d(x, 2).item())) << position;
  }
  const Tensor x = ones({1, 4, 4});
  x.set_requires_grad(true);
  max_pool2d(x, 2).backward(ones({1, 2, 2}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}));
}

// Values of the first `kinds` of ten, some of which are special; many repeat.
Tensor special_images(const Shape& sizes, std::size_t kinds) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> pool = {-1, 1, 2, -0.0f, 0, 2, -3, inf, -inf, nan};
  static std::uint32_t state = 1;
  std::vector<float> values(static_cast<std::size_t>(sizes.numel()));
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = pool[(state >> 16) % kinds];
  }
  return tensor(values).view(sizes);
}

void expect_bits_of_the_reference(const Tensor& image, Size2d kernel, const MaxPool2dOptions& options = {},
                                  float first_gradient = 0.25f) {
  TensorList results[2];
  for (const bool reference : {false, true}) {
    set_reference_kernels(reference);
    const Tensor x = image.clone();
    x.set_requires_grad(true);
    const auto [out, at] = max_pool2d_with_indices(x, kernel, options);
    const Tensor grad = arange(0.25, static_cast<double>(out.numel()), 1, kFloat32).view(out.sizes());
    grad.data<float>()[0] = first_gradient;
    out.backward(grad);
    results[reference] = {out.detach(), at, x.grad(), max_pool2d(image, kernel, options)};
  }
  set_reference_kernels(false);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(std::memcmp(results[0][i].raw_data(), results[1][i].raw_data(), results[0][i].nbytes()), 0)
        << to_string(image.sizes()) << ", windows of " << kernel.h << " x " << kernel.w << ", result " << i;
}

// Kernels for windows of 2 x 2 take several rows of a narrow plane at once.
TEST(MaxPool2d, two_by_two_of_any_sides_has_the_references_bits) {
  for (std::int64_t h = 2; h <= 11; ++h)
    for (std::int64_t w = 2; w <= 37; ++w) expect_bits_of_the_reference(special_images({3, h, w}, 7), 2);
  for (std::int64_t w = 2; w <= 37; ++w) expect_bits_of_the_reference(special_images({3, 8, w}, 10), 2);
}

TEST(MaxPool2d, windows_of_any_kind_have_the_references_bits) {
  struct Windows {
    Size2d kernel;
    MaxPool2dOptions options;
  };
  for (const Windows& windows : {Windows{3, {.stride = 1, .padding = 1}},
                                 {3, {.stride = 2, .padding = 1}},
                                 {3, {.stride = 2, .padding = 1, .ceil_mode = true}},
                                 {2, {.stride = 3, .ceil_mode = true}},
                                 {{2, 1}, {}},
                                 {{1, 2}, {}},
                                 {{3, 2}, {.stride = {2, 3}, .padding = {1, 1}}},
                                 {5, {.stride = 1, .padding = 2}},
                                 {{2, 4}, {.stride = 1, .padding = {1, 2}, .dilation = {3, 2}}}})
    for (std::int64_t w = 9; w <= 29; w += 4)
      for (const std::size_t kinds : {7, 10})
        expect_bits_of_the_reference(special_images({3, w / 2 + 1, w}, kinds), windows.kernel, windows.options, -0.0f);
  // Whole windows of -infinity, behind padding too: the first element of the image has the gradient.
  const Tensor nothing = full({2, 9, 17}, -std::numeric_limits<float>::infinity());
  expect_bits_of_the_reference(nothing, 3, {.stride = 2, .padding = 1});
}

// The kernels for windows of 2 x 2 mark maxima that are not above 0, which the indices do not show.
TEST(MaxPool2d, indices_of_windows_without_positive_numbers) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16}) {
    const Tensor x = tensor({-3.0, -1.0, -2.0, -5.0, 0.0, -0.5, -2.0, -4.0}).to(dtype).view({1, 2, 4});
    const auto [out, at] = max_pool2d_with_indices(x, 2);
    EXPECT_EQ(out.to_vector<double>(), (std::vector<double>{0, -2}));
    EXPECT_EQ(at.to_vector<std::int64_t>(), (std::vector<std::int64_t>{4, 2}));
  }
}

// Also of numbers that no double holds, by the kernel and by the reference.
TEST(MaxPool2d, of_integers_is_exact) {
  const std::int64_t large = std::int64_t{1} << 60;
  const Tensor x = tensor({large, large + 1, -large, -large - 1, large + 3, large + 2}).view({1, 2, 3});
  for (const bool reference : {false, true}) {
    set_reference_kernels(reference);
    const auto [out, at] = max_pool2d_with_indices(x, {2, 1}, {.stride = 1});
    EXPECT_EQ(out.to_vector<std::int64_t>(), (std::vector<std::int64_t>{large, large + 3, large + 2}));
    EXPECT_EQ(at.to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 4, 5}));
    for (const DType dtype : {kInt32, kUInt8}) {
      const Tensor small = max_pool2d(tensor({3, 200, 7, 1}).to(dtype).view({1, 2, 2}), 2);
      EXPECT_EQ(small.dtype(), dtype);
      EXPECT_EQ(small.item<std::int64_t>(), 200);
    }
  }
  set_reference_kernels(false);
}

// A window that is the whole plane takes its first largest element, or its last NaN, as windows of any size do.
TEST(MaxPool2d, whole_planes_agree_with_the_reference) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Size2d side : {Size2d{1, 1}, Size2d{1, 3}, Size2d{4, 4}, Size2d{7, 9}, Size2d{14, 14}}) {
    const Tensor x = make_input({9, side.h, side.w}).to(kFloat32);
    const std::int64_t plane = side.h * side.w;
    float* const values = x.data<float>();
    std::fill_n(values + plane, plane, -inf);
    std::fill_n(values + 2 * plane, plane, 0.0f);
    values[2 * plane] = -0.0f;
    values[3 * plane] = values[4 * plane - 1] = 9;
    values[4 * plane + plane / 2] = values[4 * plane] = nan;
    std::fill_n(values + 5 * plane, plane, nan);
    values[6 * plane + plane / 3] = inf;
    values[7 * plane + plane / 2] = nan;
    values[8 * plane - 1] = inf;
    for (const DType dtype : {kFloat32, kFloat64}) {
      std::vector<Tensor> results[2];
      for (const bool reference : {false, true}) {
        set_reference_kernels(reference);
        const auto [out, at] = max_pool2d_with_indices(x.to(dtype), side);
        results[reference] = {out, at};
      }
      set_reference_kernels(false);
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_EQ(std::memcmp(results[0][i].raw_data(), results[1][i].raw_data(), results[0][i].nbytes()), 0)
            << side.h << " x " << side.w << ", result " << i;
    }
  }
}

TEST(MaxPool2d, thread_count_does_not_change_bits) {
  check_threads(pool({"", {40, 16, 24, 24}, 3, {.stride = 1}, {}}));
}

TEST(MaxPool2d, errors_name_the_sizes) {
  const auto message = [](const Tensor& x, Size2d kernel, const MaxPool2dOptions& options = {}) {
    return error_of([&] { max_pool2d(x, kernel, options); });
  };
  EXPECT_NE(message(ones({4, 4}), 2).find("found [4, 4]"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}), 5).find("window is larger than the image"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}), 2, {.padding = 2}).find("half the kernel (1), found 2"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}), 0).find("at least 1"), std::string::npos);
  EXPECT_NE(message(ones({1, 0, 4}), 2).find("image is empty"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}, {.dtype = kBool}), 2).find("floating-point"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
