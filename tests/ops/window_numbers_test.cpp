// Numbers of windows that are no sizes any more: an error names the operation, and a stride past the image is harmless.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 32, kMost = std::numeric_limits<std::int64_t>::max();

TEST(WindowNumbers, TooLargeOnesAreRefused) {
  const Tensor image = randn({2, 4, 4, 4}), filter = randn({4, 2, 2, 2}), row = randn({2, 2, 5}),
               taps = randn({2, 2, 3});
  const Tensor volume = randn({1, 1, 3, 3, 3}), block = randn({1, 1, 2, 2, 2});
  struct Case {
    const char* op;
    std::function<void()> run;
  };
  for (const Case& c : {Case{"conv2d", [&] { conv2d(image, filter, {}, {.stride = kHuge, .groups = 2}); }},
                        Case{"conv2d", [&] { conv2d(image, filter, {}, {.padding = kMost, .groups = 2}); }},
                        Case{"conv3d", [&] { conv3d(volume, block, {}, {.stride = kHuge, .dilation = 2}); }},
                        Case{"conv1d", [&] { conv1d(row, taps, {}, {.padding = kMost}); }},
                        Case{"conv1d", [&] { conv1d(row, taps, {}, {.stride = 4, .padding = kMost}); }},
                        Case{"conv1d", [&] { conv1d(row, taps, {}, {.padding = 1, .dilation = kMost}); }},
                        Case{"conv_transpose2d",
                             [&] {
                               conv_transpose2d(image, randn({4, 2, 2, 2}), {}, {.stride = kMost});
                             }},
                        Case{"max_pool", [&] { max_pool1d(row, kHuge, 1, kHuge / 2); }},
                        Case{"avg_pool", [&] { avg_pool2d(image, kMost, {.padding = kMost / 2}); }},
                        Case{"chunk",
                             [&] {
                               chunk(zeros({0, 2}), kMost);
                             }},
                        Case{"interpolate", [&] { interpolate(image, {.scale_factor = 1e300}); }},
                        Case{"interpolate", [&] { interpolate(volume, {.scale_factor = 1e300}); }},
                        Case{"pixel_shuffle",
                             [&] {
                               pixel_shuffle(zeros({1, 4, 2, 2}), kHuge);
                             }},
                        Case{"pad",
                             [&] {
                               pad(zeros({2}), {kMost, kMost});
                             }},
                        Case{"pad", [&] {
                               pad(zeros({2}), {kMost, kMost}, PadMode::replicate);
                             }}}) {
    const std::string message = error_of(c.run);
    EXPECT_NE(message.find(c.op), std::string::npos) << c.op << ": " << message;
  }
}

TEST(WindowNumbers, StridesPastTheImageAreOneWindow) {
  const Tensor image = randn({2, 3, 5, 6}), filter = randn({4, 3, 2, 3});
  image.set_requires_grad(true);
  filter.set_requires_grad(true);
  const auto results = [&](std::int64_t stride) {
    const Tensor y = conv2d(image, filter, {}, {.stride = stride, .padding = 1});
    y.sum().backward();
    const TensorList all{y.detach(), image.grad().clone(), filter.grad().clone()};
    image.grad().zero_();
    filter.grad().zero_();
    return all;
  };
  const TensorList near = results(7), far = results(65536), farther = results((std::int64_t{1} << 31) - 1);
  for (std::size_t i = 0; i < near.size(); ++i) {
    EXPECT_TRUE(equal(near[i], far[i]));
    EXPECT_TRUE(equal(near[i], farther[i]));
  }
}

TEST(WindowNumbers, PoolsSkipTapsOutsideTheImage) {
  const Tensor row = tensor<float>({3, 1, 2, 5, 4}).view({1, 1, 5});
  const auto [values, at] =
      max_pool2d_with_indices(row.unsqueeze(2), {1, 1 << 30}, {.stride = 1, .padding = {0, 1 << 29}});
  EXPECT_EQ(values.numel(), 6);
  EXPECT_TRUE(equal(values, full(values.sizes(), 5.0)));
  EXPECT_TRUE(equal(at, full(at.sizes(), std::int64_t{3}, {.dtype = kInt64})));
}

}  // namespace
}  // namespace lockstep::testing
