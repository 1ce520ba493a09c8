#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/core/factories.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::expect_close;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Points in all directions, at lengths from the smallest to the largest.
TEST(Atan2, IsWithinTwoUlpAllAround) {
  constexpr int kDirections = 4001;
  std::vector<float> y, x;
  for (int i = 0; i < kDirections; ++i)
    for (const double length : {1e-37, 1e-3, 1.0, 4e4, 3e37}) {
      const double angle = (i + 0.37) * 2 * std::acos(-1.0) / kDirections;
      y.push_back(static_cast<float>(length * std::sin(angle)));
      x.push_back(static_cast<float>(length * std::cos(angle)));
    }
  const std::vector<float> result = atan2(tensor(y), tensor(x)).to_vector<float>();
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double exact = std::atan2(static_cast<double>(y[i]), static_cast<double>(x[i]));
    const auto size = static_cast<float>(std::fabs(exact));
    const double ulp = static_cast<double>(std::nextafter(size, kInf)) - static_cast<double>(size);
    worst = std::max(worst, std::fabs(static_cast<double>(result[i]) - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);
}

TEST(Atan2, AxesZerosAndInfinitiesAreAsInC) {
  for (const float y : {0.0f, -0.0f, 1.0f, -2.0f, kInf, -kInf, kNan, 1e-40f})
    for (const float x : {0.0f, -0.0f, 1.0f, -2.0f, kInf, -kInf, kNan, -1e-40f}) {
      const float result = atan2(tensor<float>({y}), tensor<float>({x})).item<float>(), expected = std::atan2(y, x);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(result)) << y << ", " << x;
      } else {
        EXPECT_NEAR(result, expected, 2.4e-7) << y << ", " << x;
        EXPECT_EQ(std::signbit(result), std::signbit(expected)) << y << ", " << x;
      }
    }
}

TEST(LogAddExp, LosesNothingAndSharesTheGradient) {
  std::vector<float> a, b;
  for (int i = 0; i < 2000; ++i) {
    a.push_back(static_cast<float>(std::sin(i) * 90));
    b.push_back(static_cast<float>(std::cos(i * 1.7) * (i % 5 == 0 ? 90 : 3)));
  }
  const std::vector<float> result = logaddexp(tensor(a), tensor(b)).to_vector<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double most = std::max(a[i], b[i]), gap = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    EXPECT_NEAR(result[i], most + std::log1p(std::exp(-gap)), 2.4e-7 * (1 + std::fabs(most))) << a[i] << ", " << b[i];
  }
  const Tensor x = tensor<float>({kInf, -kInf, 1, kInf, 2, kNan}), y = tensor<float>({kInf, -kInf, 1, 3, -kInf, 0});
  x.set_requires_grad(true);
  const Tensor sum = logaddexp(x, y);
  expect_close(sum.detach(), tensor<float>({kInf, -kInf, 1 + std::log(2.0f), kInf, 2, kNan}), 0, 2.4e-7);
  sum.backward(ones({6}));
  expect_close(x.grad(), tensor<float>({0.5, 0.5, 0.5, 1, 1, kNan}), 0, 0);
}

TEST(Lerp, GoesFromTheNearerEndAndInPlaceToo) {
  const Tensor a = tensor<float>({1, 1e8f, -3, 0.1f}), b = tensor<float>({2, 1, 5, 0.7f});
  for (const double weight : {0.0, 0.25, 0.5, 0.999, 1.0, -0.5, 1.5}) {
    const Tensor out = lerp(a, b, weight), expected = weight < 0.5 ? a + (b - a) * weight : b - (b - a) * (1 - weight);
    expect_close(out, expected, 0, 0);
    const Tensor in_place = a.clone(), into_itself = a.clone();
    in_place.lerp_(b, weight);
    expect_close(in_place, expected, 0, 0);
    into_itself.lerp_(into_itself.slice(0, 0, 1), weight);  // reads what it writes
    expect_close(into_itself, lerp(a, a.slice(0, 0, 1), weight), 0, 0);
  }
}

}  // namespace
}  // namespace lockstep
