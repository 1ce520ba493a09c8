#include "lockstep/autograd/ops/layer_norm/layer_norm.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

struct Case {
  Shape sizes;
  Shape normalized;
};

class LayerNorm : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, LayerNorm,
                         ::testing::Values(Case{{4}, {4}}, Case{{5, 3}, {3}}, Case{{2, 3, 4}, {4}},
                                           Case{{2, 3, 4}, {3, 4}}, Case{{2, 3, 4}, {2, 3, 4}}, Case{{3, 1}, {1}},
                                           Case{{7, 33}, {33}}, Case{{900, 100}, {100}}, Case{{3, 9000}, {9000}},
                                           Case{{0, 5}, {5}}, Case{{3, 0}, {0}}));

Tensor plain(const Tensor& input, std::int64_t width, const Tensor& weight, const Tensor& bias, double eps) {
  const Tensor x = cast_values(input, kFloat64), w = cast_values(weight, kFloat64), b = cast_values(bias, kFloat64);
  const Tensor y = empty_like(x);
  for (std::int64_t first = 0; first < x.numel(); first += width) {
    double mean = 0, var = 0;
    for (std::int64_t i = first; i < first + width; ++i) mean += x.data<double>()[i] / static_cast<double>(width);
    for (std::int64_t i = first; i < first + width; ++i)
      var += std::pow(x.data<double>()[i] - mean, 2) / static_cast<double>(width);
    for (std::int64_t i = 0; i < width; ++i)
      y.data<double>()[first + i] =
          (x.data<double>()[first + i] - mean) / std::sqrt(var + eps) * w.data<double>()[i] + b.data<double>()[i];
  }
  return y;
}

TEST_P(LayerNorm, MatchesPlainLoops) {
  const auto [sizes, normalized] = GetParam();
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = make_input(sizes, 1, dtype, 1, 4);
    const Tensor w = make_input(normalized, 2, dtype), b = make_input(normalized, 3, dtype);
    const Tensor y = layer_norm(x, normalized, {.weight = w, .bias = b});
    const double tolerance = dtype == kFloat64 ? 1e-12 : dtype == kFloat32 ? 2e-5 : dtype == kFloat16 ? 2e-3 : 2e-2;
    EXPECT_EQ(y.dtype(), dtype);
    expect_close(y, plain(x, normalized.numel(), w, b, 1e-5), tolerance, tolerance);
    expect_close(layer_norm(make_strided(x), normalized, {.weight = make_strided(w), .bias = make_strided(b)}), y, 0,
                 0);
  }
}

TEST_P(LayerNorm, GradientMatchesCentralDifferences) {
  const auto [sizes, normalized] = GetParam();
  if (sizes.numel() > 300) return;  // the same paths as the smaller ones
  const Shape shape = normalized;
  gradcheck([&](const auto& in) { return layer_norm(in[0], shape, {.weight = in[1], .bias = in[2], .eps = 1e-2}); },
            {make_leaf(sizes, 1), make_leaf(shape, 2), make_leaf(shape, 3)});
  gradcheck([&](const auto& in) { return layer_norm(in[0], shape, {.eps = 1e-2}); }, {make_leaf(sizes, 1)});
}

TEST_P(LayerNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const auto [sizes, normalized] = GetParam();
  const int before = num_threads();
  std::vector<std::vector<double>> results[2];
  for (int t = 0; t < 2; ++t) {
    set_num_threads(t + 1);
    const Tensor x = make_leaf(sizes, 1, kFloat32), w = make_leaf(normalized, 2, kFloat32),
                 b = make_leaf(normalized, 3, kFloat32);
    const Tensor y = layer_norm(x, normalized, {.weight = w, .bias = b});
    y.backward(make_input(sizes, 4, kFloat32));
    for (const Tensor& result : {y, x.grad(), w.grad(), b.grad()}) results[t].push_back(result.to_vector<double>());
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(LayerNorm, Float32GradientsAgreeWithFloat64) {
  const auto [sizes, normalized] = GetParam();
  std::vector<Tensor> grads[2];
  for (const DType dtype : {kFloat64, kFloat32}) {
    const Tensor x = make_leaf(sizes, 1, dtype), w = make_leaf(normalized, 2, dtype),
                 b = make_leaf(normalized, 3, dtype);
    layer_norm(x, normalized, {.weight = w, .bias = b}).backward(make_input(sizes, 4, dtype));
    grads[dtype == kFloat32] = {x.grad(), w.grad(), b.grad()};
  }
  if (sizes.back() == 1) return;  // one value a row: the gradient is rounding noise times 1 / sqrt(eps)
  for (std::size_t i = 0; i < 3; ++i) expect_close(grads[1][i], grads[0][i], 1e-4, 1e-4);
}

TEST(LayerNormValues, HalfInputsTakeFloatParametersAndGiveThemFloatGradients) {
  const Tensor x = make_leaf({8, 4}, 1, kBFloat16), w = make_leaf({4}, 2, kFloat32), b = make_leaf({4}, 3, kFloat32);
  layer_norm(x, {4}, {.weight = w, .bias = b}).backward(make_input({8, 4}, 4, kBFloat16));
  EXPECT_EQ(x.grad().dtype(), kBFloat16);
  EXPECT_EQ(w.grad().dtype(), kFloat32);
  EXPECT_EQ(b.grad().dtype(), kFloat32);
}

TEST(LayerNormErrors, NameTheProblem) {
  const Tensor x = make_input({2, 3, 4}, 1, kFloat32);
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] { layer_norm(x, {3}); },
       "[layer_norm] expected an input whose shape ends in normalized_shape [3], found [2, 3, 4]"},
      {[&] { layer_norm(x, {}); }, "normalized_shape []"},
      {[&] {
         layer_norm(x, {1, 2, 3, 4});
       },
       "normalized_shape [1, 2, 3, 4]"},
      {[&] { layer_norm(x, {4}, {.weight = ones({3})}); }, "expected weight of shape [4], found [3]"},
      {[&] { layer_norm(x, {4}, {.bias = ones({4}, {.dtype = kFloat64})}); }, "expected bias of dtype float32"},
      {[&] {
         layer_norm(x, {4}, {.weight = move_values(ones({4}), {kCPU, 1})});
       },
       "weight is on cpu:1"},
      {[&] { layer_norm(zeros({4}, {.dtype = kInt32}), {4}); }, "found int32"},
      {[&] { layer_norm(x, {4}, {.eps = -1.0}); }, "eps is -1"},
      {[&] { layer_norm({}, {4}); }, "input is undefined"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep
