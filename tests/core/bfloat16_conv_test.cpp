// Convolutions of bfloat16 by pairs against products in float32, to the bit.

#include "lockstep/core/cpu/conv/bfloat16_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/core/cpu/conv/winograd.h"
#include "lockstep/core/cpu/gemm/bfloat16_product.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

std::vector<BFloat16> halves(std::int64_t count, std::uint32_t seed) {
  std::vector<BFloat16> out(static_cast<std::size_t>(count));
  std::uint32_t state = seed;
  for (BFloat16& x : out) {
    state = state * 1664525U + 1013904223U;
    const std::uint32_t exponent = 110 + (state >> 8) % 20, zero = (state >> 13) % 7;
    x.bits = static_cast<std::uint16_t>(state >> 31 << 15 | (zero == 0 ? 0 : exponent << 7 | ((state >> 16) & 0x7f)));
  }
  return out;
}
std::vector<float> widened(const std::vector<BFloat16>& x) {
  return {x.begin(), x.end()};
}

struct Case {
  std::int64_t n, in, h, w, out, kh, kw, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, groups;
  Conv conv() const {
    const auto size = [](std::int64_t image, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                         std::int64_t dilation) {
      return (image + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    };
    return {.n = n,
            .in = in,
            .h = h,
            .w = w,
            .out = out,
            .kh = kh,
            .kw = kw,
            .oh = size(h, kh, stride_h, padding_h, dilation_h),
            .ow = size(w, kw, stride_w, padding_w, dilation_w),
            .stride_h = stride_h,
            .stride_w = stride_w,
            .padding_h = padding_h,
            .padding_w = padding_w,
            .dilation_h = dilation_h,
            .dilation_w = dilation_w,
            .groups = groups};
  }
};

void expect_same(const std::vector<float>& expected, const std::vector<BFloat16>& found, const char* what) {
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(found[i].bits, BFloat16(expected[i]).bits) << what << ", element " << i << " of " << expected.size();
}

void check(const Case& c) {
  const Conv conv = c.conv();
  ASSERT_TRUE(conv_goes_by_products(conv));
  const std::int64_t weights = conv.out * conv.group_in() * conv.kh * conv.kw;
  // Vectors of their own length: what is read beside them shows under Address Sanitizer.
  const auto x = halves(conv.n * conv.in * conv.h * conv.w, 1), weight = halves(weights, 2),
             grad = halves(conv.n * conv.out * conv.oh * conv.ow, 3);
  const std::vector<float> wide_x = widened(x), wide_weight = widened(weight), wide_grad = widened(grad),
                           bias(static_cast<std::size_t>(conv.out), 0.375F);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool finishes : {false, true}) {
    std::vector<float> expected(grad.size(), nan);
    std::vector<BFloat16> found(grad.size(), BFloat16(nan));
    const float* const shifts = finishes ? bias.data() : nullptr;
    conv_detail::product_forward(conv, wide_x.data(), wide_weight.data(), shifts, finishes, expected.data(), nullptr,
                                 instruction_set());
    ASSERT_TRUE(conv_bfloat16_forward(conv, x.data(), weight.data(), shifts, finishes, found.data()));
    expect_same(expected, found, "forward");
  }
  {
    std::vector<float> expected(x.size(), nan);
    std::vector<BFloat16> found(x.size(), BFloat16(nan));
    conv_detail::product_backward_data(conv, wide_grad.data(), wide_weight.data(), expected.data(), instruction_set());
    ASSERT_TRUE(conv_bfloat16_backward_data(conv, grad.data(), weight.data(), found.data()));
    expect_same(expected, found, "gradient of x");
  }
  std::vector<float> expected(weight.size(), nan);
  std::vector<BFloat16> found(weight.size(), BFloat16(nan));
  conv_detail::product_backward_weight(conv, wide_grad.data(), wide_x.data(), expected.data(), instruction_set());
  ASSERT_TRUE(conv_bfloat16_backward_weight(conv, grad.data(), x.data(), found.data()));
  expect_same(expected, found, "gradient of the weights");
}

class Bfloat16Conv : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_bfloat16_pairs()) GTEST_SKIP() << "this processor, or what is asked of it, has no pairs of bfloat16";
  }
};

TEST_F(Bfloat16Conv, HasTheBitsOfFloat32) {
  const Case cases[] = {
      {2, 16, 8, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {1, 12, 5, 7, 13, 1, 1, 1, 1, 0, 0, 1, 1, 1},
      {3, 13, 9, 11, 45, 3, 3, 2, 2, 1, 1, 1, 1, 1},
      {2, 64, 14, 14, 40, 1, 1, 2, 2, 0, 0, 1, 1, 1},
      {2, 24, 12, 12, 36, 5, 5, 1, 1, 2, 2, 1, 1, 1},
      {1, 16, 20, 33, 17, 3, 3, 1, 1, 2, 2, 2, 2, 1},
      {5, 70, 4, 4, 70, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {2, 48, 10, 9, 72, 3, 3, 1, 1, 0, 0, 1, 1, 3},
      {1, 20, 1, 300, 24, 1, 5, 1, 1, 0, 2, 1, 1, 1},
      {2, 16, 30, 1, 16, 3, 1, 2, 1, 1, 0, 1, 1, 1},
      {1, 128, 6, 6, 14, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {2, 12, 17, 18, 12, 4, 2, 3, 2, 1, 0, 1, 1, 1},
      {4, 12, 16, 16, 100, 3, 3, 1, 2, 1, 1, 1, 1, 1},
      {1, 16, 7, 8, 16, 2, 2, 1, 1, 0, 0, 1, 1, 1},
      {70, 12, 3, 3, 12, 3, 3, 1, 1, 1, 1, 1, 1, 1},
      {1, 12, 40, 40, 12, 7, 7, 2, 2, 3, 3, 1, 1, 1},
      // No result sees any of x.
      {1, 16, 1, 8, 16, 1, 3, 4, 1, 1, 1, 1, 1, 1},
      {1, 16, 8, 1, 16, 3, 1, 1, 4, 1, 1, 1, 1, 1},
      {2, 24, 9, 9, 24, 3, 3, 4, 4, 0, 0, 1, 1, 2},
      {1, 12, 2, 600, 12, 1, 3, 1, 1, 0, 1, 1, 1, 1},
  };
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (std::size_t i = 0; i < std::size(cases); ++i) {
      SCOPED_TRACE(::testing::Message() << "case " << i << ", threads " << threads);
      check(cases[i]);
    }
  }
  set_num_threads(1);
}

TEST_F(Bfloat16Conv, TinyHugeAndInfiniteNumbersAreNotForPairs) {
  const Conv conv = Case{1, 12, 4, 4, 12, 3, 3, 1, 1, 1, 1, 1, 1, 1}.conv();
  const auto goes = [&](float a, float b) {
    std::vector<BFloat16> x(12 * 16, BFloat16(0.0F)), weight(12 * 12 * 9, BFloat16(0.0F)), grad = x, found = x,
                                                                                           of = weight;
    x[77] = grad[77] = BFloat16(a);
    weight[1000] = BFloat16(b);
    const bool forward = conv_bfloat16_forward(conv, x.data(), weight.data(), nullptr, false, found.data());
    EXPECT_EQ(conv_bfloat16_backward_data(conv, grad.data(), weight.data(), found.data()), forward);
    x[50] = BFloat16(b);
    grad[50] = BFloat16(0.0F);
    x[77] = BFloat16(0.0F);
    EXPECT_EQ(conv_bfloat16_backward_weight(conv, grad.data(), x.data(), of.data()), forward);
    return forward;
  };
  EXPECT_TRUE(goes(1.0F, -1.0F));
  EXPECT_TRUE(goes(0x1p-50F, 0x1p-50F));
  EXPECT_FALSE(goes(0x1p-100F, 0x1p-100F));
  EXPECT_FALSE(goes(0x1p100F, 0x1p100F));
  EXPECT_FALSE(goes(0x1p-130F, 1.0F));
  EXPECT_FALSE(goes(std::numeric_limits<float>::infinity(), 1.0F));
  EXPECT_FALSE(goes(1.0F, std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace
}  // namespace lockstep::cpu
