#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  const char* name;
  Shape x;
  Size2d kernel;
  AvgPool2dOptions options;
  Shape out;
};

Tensor expected_pool(const Case& c, const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  const std::int64_t h = x.size(-2), w = x.size(-1), oh = c.out[c.out.dim() - 2], ow = c.out.back();
  const std::int64_t sh = c.options.stride.h ? c.options.stride.h : c.kernel.h;
  const std::int64_t sw = c.options.stride.w ? c.options.stride.w : c.kernel.w;
  std::vector<double> out;
  for (std::int64_t i = 0; i < c.out.numel(); ++i) {
    double sum = 0;
    int inside = 0, padded = 0;
    for (std::int64_t ky = 0; ky < c.kernel.h; ++ky)
      for (std::int64_t kx = 0; kx < c.kernel.w; ++kx) {
        const std::int64_t y = i / ow % oh * sh - c.options.padding.h + ky;
        const std::int64_t column = i % ow * sw - c.options.padding.w + kx;
        if (y >= h + c.options.padding.h || column >= w + c.options.padding.w) continue;
        ++padded;
        if (y < 0 || y >= h || column < 0 || column >= w) continue;
        ++inside;
        sum += values[static_cast<std::size_t>((i / (oh * ow) * h + y) * w + column)];
      }
    const double divisor = c.options.divisor_override    ? static_cast<double>(c.options.divisor_override)
                           : c.options.count_include_pad ? padded
                                                         : inside;
    out.push_back(sum / divisor);
  }
  return tensor(out).as_strided(c.out, contiguous_strides(c.out), 0);
}

OpCase pool(const Case& c) {
  return {.name = c.name,
          .inputs = [=] { return TensorList{make_leaf(c.x)}; },
          .run = [=](const TensorList& in) { return TensorList{avg_pool2d(in[0], c.kernel, c.options)}; },
          .expected = [=](const TensorList& in) { return TensorList{expected_pool(c, in[0])}; }};
}

class AvgPool2dCases : public ::testing::TestWithParam<Case> {};

TEST_P(AvgPool2dCases, values_and_gradients) {
  check_op(pool(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    Windows, AvgPool2dCases,
    ::testing::Values(
        Case{"two", {2, 3, 6, 8}, 2, {}, {2, 3, 3, 4}}, Case{"three_dims", {2, 5, 4}, 2, {}, {2, 2, 2}},
        Case{"overlap", {1, 2, 6, 7}, 3, {.stride = 1}, {1, 2, 4, 5}},
        Case{"padding", {1, 2, 5, 6}, 3, {.stride = 2, .padding = 1}, {1, 2, 3, 3}},
        Case{"padding_not_counted",
             {1, 2, 5, 6},
             3,
             {.stride = 2, .padding = 1, .count_include_pad = false},
             {1, 2, 3, 3}},
        Case{"window_beyond", {1, 2, 2, 5}, 3, {.stride = 2, .ceil_mode = true}, {1, 2, 1, 2}},
        Case{"ceil", {1, 2, 7, 5}, 2, {.ceil_mode = true}, {1, 2, 4, 3}},
        Case{"ceil_padding", {1, 1, 6, 6}, 3, {.stride = 2, .padding = 1, .ceil_mode = true}, {1, 1, 4, 4}},
        Case{"divisor", {1, 2, 4, 4}, {2, 3}, {.divisor_override = 7}, {1, 2, 2, 1}},
        Case{"empty_batch", {0, 2, 4, 4}, 2, {}, {0, 2, 2, 2}}),
    [](const auto& info) { return std::string(info.param.name); });

// Rows of windows are computed together; the order of each sum is that of one window after the other.
TEST(AvgPool2d, sums_are_in_the_order_of_plain_loops) {
  struct Windows {
    std::int64_t kernel, stride, padding;
  };
  for (const auto& [kernel, stride, padding] :
       {Windows{2, 2, 0}, Windows{3, 1, 1}, Windows{3, 2, 1}, Windows{4, 3, 2}, Windows{7, 7, 0}})
    for (std::int64_t w = 7; w <= 33; w += 13) {
      const std::int64_t h = 9, oh = (h + 2 * padding - kernel) / stride + 1,
                         ow = (w + 2 * padding - kernel) / stride + 1;
      const Tensor x = make_input({1, h, w}).to(kFloat32), grad = make_input({1, oh, ow}).to(kFloat32);
      x.set_requires_grad(true);
      const Tensor out = avg_pool2d(x, kernel, {.stride = stride, .padding = padding, .count_include_pad = false});
      out.backward(grad);
      std::vector<float> shares(static_cast<std::size_t>(h * w));
      for (std::int64_t y = 0; y < oh; ++y)
        for (std::int64_t i = 0; i < ow; ++i) {
          const std::int64_t top = std::max<std::int64_t>(y * stride - padding, 0),
                             left = std::max<std::int64_t>(i * stride - padding, 0),
                             bottom = std::min(y * stride - padding + kernel, h),
                             right = std::min(i * stride - padding + kernel, w);
          const auto count = static_cast<float>((bottom - top) * (right - left));
          float sum = 0;
          for (std::int64_t row = top; row < bottom; ++row)
            for (std::int64_t column = left; column < right; ++column) {
              sum += x.data<float>()[row * w + column];
              shares[static_cast<std::size_t>(row * w + column)] += grad.data<float>()[y * ow + i] / count;
            }
          EXPECT_EQ(out.data<float>()[y * ow + i], sum / count);
        }
      EXPECT_EQ(std::memcmp(x.grad().data<float>(), shares.data(), shares.size() * sizeof(float)), 0) << kernel;
    }
}

TEST(AvgPool2d, thread_count_does_not_change_bits) {
  check_threads(pool({"", {40, 16, 24, 24}, 3, {.stride = 1}, {}}));
}

TEST(AvgPool2d, errors_name_the_sizes) {
  const auto message = [](const Tensor& x, Size2d kernel, const AvgPool2dOptions& options = {}) {
    return error_of([&] { avg_pool2d(x, kernel, options); });
  };
  EXPECT_NE(message(ones({4}), 2).find("found [4]"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}), {2, 5}).find("larger than the image: width 4"), std::string::npos);
  EXPECT_NE(message(ones({1, 4, 4}), 2, {.padding = -1}).find("found -1"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
