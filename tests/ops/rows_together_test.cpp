// Kernels that go through several rows at once: each row has the bits that it has alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/layer_norm/layer_norm.h"
#include "lockstep/autograd/ops/norm/norm.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/scan/scan.h"
#include "lockstep/autograd/ops/softmax/softmax.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

// The order that reductions of neighbours have: 32 lanes of float, which meet in double, half to half.
float sum_in_lanes(const float* x, std::int64_t count) {
  double total = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += 512) {
    float lanes[32] = {};
    const std::int64_t end = std::min<std::int64_t>(begin + 512, count);
    for (std::int64_t i = begin; i < end; ++i) lanes[(i - begin) % 32] += x[i];
    double w[4][4], t[4];
    for (int v = 0; v < 4; ++v)
      for (int l = 0; l < 4; ++l)
        w[v][l] = static_cast<double>(lanes[8 * v + l]) + static_cast<double>(lanes[8 * v + l + 4]);
    for (int l = 0; l < 4; ++l) t[l] = (w[0][l] + w[2][l]) + (w[1][l] + w[3][l]);
    total += (t[0] + t[2]) + (t[1] + t[3]);
  }
  return static_cast<float>(total);
}

TEST(RowsTogether, SumsHaveTheOrderThatIsWrittenDown) {
  for (const std::int64_t width : {16, 17, 24, 31, 32, 40, 64, 100, 512, 513, 1000, 1056}) {
    const Tensor x = make_input({13, width}, 3, kFloat32, -1.0, 100.0);
    const std::vector<float> values = x.to_vector<float>(), sums = x.sum({1}).to_vector<float>();
    for (std::int64_t r = 0; r < 13; ++r)
      ASSERT_EQ(sums[static_cast<std::size_t>(r)], sum_in_lanes(values.data() + r * width, width)) << width << " " << r;
  }
}

void expect_rows_alone(const Tensor& x, const std::function<Tensor(const Tensor&)>& run, const char* what) {
  const Tensor together = run(x);
  for (std::int64_t r = 0; r < x.size(0); ++r)
    ASSERT_TRUE(equal(together.narrow(0, r, 1), run(x.narrow(0, r, 1).clone())))
        << what << ": row " << r << " of " << to_string(x.sizes());
}

TEST(RowsTogether, HaveTheBitsOfEachAlone) {
  for (const DType dtype : {kFloat32, kFloat64})
    for (const std::int64_t width : {16, 19, 32, 49, 64, 600}) {
      const Tensor x = make_input({21, width}, 5, dtype, -2.0, 3.0);
      expect_rows_alone(
          x, [](const Tensor& t) { return t.sum({1}); }, "sum");
      expect_rows_alone(
          x, [](const Tensor& t) { return t.mean({1}); }, "mean");
      expect_rows_alone(
          x, [](const Tensor& t) { return t.var({1}); }, "var");
      expect_rows_alone(
          x, [](const Tensor& t) { return norm(t, {1}); }, "norm");
      expect_rows_alone(
          x, [](const Tensor& t) { return t.max({1}); }, "max");
      expect_rows_alone(
          x, [](const Tensor& t) { return t.min({1}); }, "min");
      expect_rows_alone(
          x, [](const Tensor& t) { return logsumexp(t, {1}); }, "logsumexp");
      expect_rows_alone(
          x, [](const Tensor& t) { return log_softmax(t, 1); }, "log_softmax");
      expect_rows_alone(
          x, [](const Tensor& t) { return layer_norm(t, {t.size(1)}); }, "layer_norm");
      expect_rows_alone(
          x, [](const Tensor& t) { return cumsum(t, 1); }, "cumsum");
      expect_rows_alone(
          x, [](const Tensor& t) { return cumprod(t, 1); }, "cumprod");
      for (const bool scan : {false, true}) {
        const auto gradient = [scan](const Tensor& t) {
          const Tensor leaf = t.clone();
          leaf.set_requires_grad(true);
          const Tensor y = scan ? cumsum(leaf, 1) : layer_norm(leaf, {t.size(1)});
          y.backward(t * t + 1.0);
          return leaf.grad();
        };
        expect_rows_alone(x, gradient, scan ? "gradient of cumsum" : "gradient of layer_norm");
      }
      EXPECT_TRUE(equal(norm(x, {1}), sqrt(sum(square(x), {1}))));
    }
}

TEST(RowsTogether, ExtremesAreThoseOfPlainLoops) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t width : {16, 21, 32, 70}) {
    const Tensor x = make_input({11, width}, 7, kFloat32);
    float* data = x.data<float>();
    data[2 * width + 5] = none;
    data[9 * width + width - 1] = none;
    const std::vector<float> values = x.to_vector<float>(), most = x.max({1}).to_vector<float>();
    for (std::int64_t r = 0; r < 11; ++r) {
      const float* row = values.data() + r * width;
      if (r == 2 || r == 9)
        EXPECT_TRUE(std::isnan(most[static_cast<std::size_t>(r)])) << r;
      else
        EXPECT_EQ(most[static_cast<std::size_t>(r)], *std::max_element(row, row + width)) << r;
    }
  }
}

// Operands that lie along another dimension are turned first.
TEST(RowsTogether, TurnedOperandsGiveWhatOthersDo) {
  const Tensor a = make_input({70, 90}, 1, kFloat32).transpose(0, 1), b = make_input({90, 70}, 2, kFloat32);
  const Tensor c = make_input({9, 30, 20}, 3, kFloat64).permute({2, 0, 1}), d = make_input({20, 9, 30}, 4, kFloat64);
  EXPECT_TRUE(equal(a * b, a.contiguous() * b));
  EXPECT_TRUE(equal(b - a, b - a.contiguous()));
  EXPECT_TRUE(equal(a / a, ones({90, 70})));
  EXPECT_TRUE(equal(a < b, a.contiguous() < b));
  EXPECT_TRUE(equal(exp(a), exp(a.contiguous())));
  EXPECT_TRUE(equal(c + d, c.contiguous() + d));
  EXPECT_TRUE(equal(d * c, d * c.contiguous()));
  const Tensor square = make_input({80, 80}, 5, kFloat32), sum = square + square.transpose(0, 1);
  EXPECT_TRUE(equal(sum, sum.transpose(0, 1).contiguous()));
}

TEST(RowsTogether, OfRowsThatStandForManyHaveTheSumsOfACopy) {
  for (const DType dtype : {kFloat32, kFloat64, kInt64}) {
    const Tensor x = arange(2 * 40, dtype).view({2, 1, 40}).expand({2, 33, 40});
    EXPECT_TRUE(x.sum({1}).equal(x.clone().sum({1}))) << name(dtype);
    EXPECT_TRUE(x.max(1).equal(x.clone().max(1))) << name(dtype);
  }
}

}  // namespace
}  // namespace lockstep::testing
