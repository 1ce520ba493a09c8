// Note [Depthwise convolutions on CUDA]: values and gradients are those of the CPU in float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/channels_last.h"
#include "tests/support/channels_last_test_base.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

struct Case {
  Shape sizes;
  std::int64_t kh, kw;
  Conv2dOptions options;
  bool bias = false;
};

class CudaDepthwise : public ChannelsLastTest {
 protected:
  static double tolerance() {
    if (GetParam() == kFloat32) return 1e-6;
    return GetParam() == kFloat16 ? 1e-3 : 8e-3;
  }

  /// The largest error, of the largest value.
  static void expect_near(const Tensor& found, const Tensor& expected, double factor, const std::string& what) {
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    const auto a = found.to_vector<double>(), b = expected.to_vector<double>();
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(b[i]));
      error = std::max(error, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) : 1e30);
    }
    EXPECT_LE(error, factor * tolerance() * largest) << what;
  }

  struct Found {
    Tensor y, x_grad, weight_grad, bias_grad;
  };
  static Found run(Case c, const Tensor& image, const Tensor& filters, const Tensor& shifts, const Tensor& slope) {
    c.options.groups = c.sizes[1];
    const Tensor x = image.detach().requires_grad_(), w = filters.detach().requires_grad_(),
                 b = c.bias ? shifts.detach().requires_grad_() : Tensor();
    // Whoever reads x in its own order has it copied.
    const Tensor read = x.device().is_cuda() ? from_channels_last(to_channels_last(x.detach())).requires_grad_() : x;
    const Tensor y = conv2d(read, w, b, c.options);
    if (x.device().is_cuda()) {
      EXPECT_TRUE(channels_last_of(y).defined());
    }
    y.backward(slope);
    return {y, read.grad(), w.grad(), c.bias ? b.grad() : Tensor()};
  }

  static void check(const Case& c) {
    const std::string what = to_string(c.sizes) + " by " + std::to_string(c.kh) + " x " + std::to_string(c.kw) +
                             ", stride " + std::to_string(c.options.stride.h) + " x " +
                             std::to_string(c.options.stride.w) + ", padding " + std::to_string(c.options.padding.h) +
                             " x " + std::to_string(c.options.padding.w);
    const Tensor x = values(c.sizes, 1), w = values({c.sizes[1], 1, c.kh, c.kw}, 2), b = values({c.sizes[1]}, 3);
    const auto exact = [](const Tensor& t) { return t.to(kCPU).to(kFloat64); };
    Conv2dOptions options = c.options;
    options.groups = c.sizes[1];
    const Tensor slope = values(conv2d(exact(x), exact(w), {}, options).sizes(), 4);
    const Found found = run(c, x, w, b, slope), expected = run(c, exact(x), exact(w), exact(b), exact(slope));
    expect_near(found.y, expected.y, 1, what);
    expect_near(found.x_grad, expected.x_grad, 1, what + ", x");
    expect_near(found.weight_grad, expected.weight_grad, 2, what + ", weight");
    if (c.bias) expect_near(found.bias_grad, expected.bias_grad, 2, what + ", bias");
  }
};

TEST_P(CudaDepthwise, HasTheCpusValuesAndGradients) {
  for (const std::int64_t kernel : {3, 5, 7})
    for (const std::int64_t stride : {1, 2})
      for (const std::int64_t padding : {std::int64_t{0}, kernel / 2, kernel + 1})
        check({{3, 24, 11, 13}, kernel, kernel, {.stride = stride, .padding = padding}, padding == kernel / 2});
}

TEST_P(CudaDepthwise, TakesAnySizes) {
  check({{1, 8, 1, 1}, 3, 3, {.padding = 1}, true});
  check({{2, 8, 3, 9}, 3, 5, {.stride = {3, 1}, .padding = {1, 2}}});
  check({{2, 16, 12, 6}, 1, 3, {.stride = {1, 2}}});
  check({{2, 16, 9, 3}, 4, 3, {.stride = {2, 1}, .padding = {0, 1}}, true});
  check({{5, 264, 7, 6}, 3, 3, {.padding = 1}, true});
  check({{2, 1032, 5, 5}, 5, 5, {.stride = 2, .padding = 2}});
  check({{1, 520, 8, 8}, 7, 7, {.padding = 3}, true});
  check({{70, 8, 33, 31}, 3, 3, {.padding = 1}, true});
}

TEST_P(CudaDepthwise, ReluBehindIsJoined) {
  const Tensor image = from_channels_last(to_channels_last(values({2, 16, 6, 7}, 1)));
  const Tensor filters = values({16, 1, 3, 3}, 2), shifts = values({16}, 3);
  const Conv2dOptions options{.padding = 1, .groups = 16};
  const Tensor joined = relu(conv2d(image, filters, shifts, options));
  EXPECT_TRUE(channels_last_of(joined).defined());
  const auto cpu = [](const Tensor& t) { return t.to(kCPU).to(kFloat64); };
  expect_near(joined, relu(conv2d(cpu(image), cpu(filters), cpu(shifts), options)), 1, "relu");
}

INSTANTIATE_TEST_SUITE_P(Types, CudaDepthwise, ::testing::Values(kFloat16, kBFloat16, kFloat32),
                         [](const auto& i) { return std::string(name(i.param)); });

}  // namespace
}  // namespace lockstep::testing
