#include "lockstep/autograd/ops/layer_norm/layer_norm.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/ops/group_norm/group_norm.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

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

OpCase layer_norm_of(const Case& c, bool affine) {
  const Shape normalized = c.normalized;
  return {.name = "",
          .inputs =
              [=] {
                // The gradient of one value a row is zero but for rounding.
                const Tensor x = make_input(c.sizes, 1, kFloat64, 1, 4);
                x.set_requires_grad(normalized.numel() != 1);
                return TensorList{x, make_leaf(normalized, 2), make_leaf(normalized, 3)};
              },
          .run =
              [=](const TensorList& in) {
                const Tensor none;
                return TensorList{layer_norm(
                    in[0], normalized, {.weight = affine ? in[1] : none, .bias = affine ? in[2] : none, .eps = 1e-2})};
              },
          .slack = 8,
          .constant = !affine && normalized.numel() == 1,
          .expected =
              [=](const TensorList& in) {
                const TensorOptions options{.dtype = kFloat64};
                return TensorList{plain(in[0], normalized.numel(), affine ? in[1] : ones(normalized, options),
                                        affine ? in[2] : zeros(normalized, options), 1e-2)};
              }};
}

TEST_P(LayerNorm, ValuesAndGradients) {
  for (const bool affine : {false, true}) check_op(layer_norm_of(GetParam(), affine));
}

TEST(LayerNormValues, HalfInputsTakeFloatParametersAndGiveThemFloatGradients) {
  const Tensor x = make_leaf({8, 4}, 1, kBFloat16), w = make_leaf({4}, 2, kFloat32), b = make_leaf({4}, 3, kFloat32);
  layer_norm(x, {4}, {.weight = w, .bias = b}).backward(make_input({8, 4}, 4, kBFloat16));
  EXPECT_EQ(x.grad().dtype(), kBFloat16);
  EXPECT_EQ(w.grad().dtype(), kFloat32);
  EXPECT_EQ(b.grad().dtype(), kFloat32);
}

TEST(LayerNormValues, TakesPyTorchsArguments) {
  const Tensor x = make_input({3, 4}, 1, kFloat32), w = make_input({4}, 2, kFloat32), b = make_input({4}, 3, kFloat32);
  const auto values = [](const Tensor& y) { return y.to_vector<double>(); };
  EXPECT_EQ(values(layer_norm(x, {4}, w, b, 1e-3)), values(layer_norm(x, {4}, {.weight = w, .bias = b, .eps = 1e-3})));
  EXPECT_EQ(values(layer_norm(x, {4}, {}, b)), values(layer_norm(x, {4}, {.bias = b})));
  EXPECT_EQ(values(layer_norm(x, {4}, {})), values(layer_norm(x, {4})));
}

class RmsNorm : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, RmsNorm,
                         ::testing::Values(Case{{4}, {4}}, Case{{2, 3, 4}, {3, 4}}, Case{{7, 33}, {33}},
                                           Case{{300, 100}, {100}}, Case{{0, 5}, {5}}, Case{{3, 0}, {0}}));
TEST_P(RmsNorm, ValuesAndGradients) {
  const Shape normalized = GetParam().normalized;
  for (const bool weighted : {false, true})
    check_op({.name = "",
              .inputs =
                  [=] {
                    return TensorList{make_leaf(GetParam().sizes, 1, kFloat64, -1, 4), make_leaf(normalized, 2)};
                  },
              .run =
                  [=](const TensorList& in) {
                    return TensorList{rms_norm(in[0], normalized, weighted ? in[1] : Tensor(), 1e-2)};
                  },
              .slack = 8,
              .expected =
                  [=](const TensorList& in) {
                    const std::int64_t width = normalized.numel();
                    const Tensor x = copy_contiguous(in[0].detach()), y = empty_like(x);
                    const std::vector<double> weight = in[1].to_vector<double>();
                    for (std::int64_t first = 0; first < x.numel(); first += width) {
                      const double* row = x.data<double>() + first;
                      double squares = 0;
                      for (std::int64_t i = 0; i < width; ++i) squares += row[i] * row[i];
                      const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-2);
                      for (std::int64_t i = 0; i < width; ++i)
                        y.data<double>()[first + i] =
                            row[i] * factor * (weighted ? weight[static_cast<std::size_t>(i)] : 1.0);
                    }
                    return TensorList{y};
                  }});
}

TEST(RmsNormErrors, NameTheProblem) {
  EXPECT_NE(error_of([] {
              rms_norm(ones({2, 3}), {4});
            }).find("[rms_norm] expected an input whose shape ends in"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              rms_norm(ones({2, 3}), {3}, ones({2}));
            }).find("[rms_norm] expected weight of shape [3]"),
            std::string::npos);
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
      {[&] { layer_norm(x, {4}, {.eps = std::nan("")}); }, "eps is not a number"},
      {[&] { layer_norm({}, {4}); }, "input is undefined"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

TEST(GroupNorm, NormalisesGroupsOfChannels) {
  check_op({.name = "",
            .inputs =
                [] {
                  return TensorList{make_leaf({2, 4, 3, 2}, 1), make_leaf({4}, 2), make_leaf({4}, 3)};
                },
            .run =
                [](const TensorList& in) {
                  return TensorList{group_norm(in[0], 2, {.weight = in[1], .bias = in[2], .eps = 1e-2})};
                },
            .slack = 16,
            .expected =
                [](const TensorList& in) {
                  const TensorOptions options{.dtype = kFloat64};
                  const Tensor y = plain(in[0], 12, ones({12}, options), zeros({12}, options), 1e-2);
                  for (std::int64_t i = 0; i < y.numel(); ++i) {
                    const std::int64_t channel = i / 6 % 4;
                    y.data<double>()[i] =
                        y.data<double>()[i] * in[1].to_vector<double>()[channel] + in[2].to_vector<double>()[channel];
                  }
                  return TensorList{y};
                }});
}

TEST(GroupNorm, ErrorsNameTheProblem) {
  const Tensor x = zeros({2, 4, 3});
  EXPECT_NE(error_of([&] { group_norm(x, 3); }).find("divides the 4 channels, found 3"), std::string::npos);
  EXPECT_NE(error_of([&] { group_norm(x, 0); }).find("found 0"), std::string::npos);
  EXPECT_NE(error_of([&] { group_norm(zeros({2, 4, 0}), 2); }).find("a group to have elements"), std::string::npos);
  EXPECT_NE(error_of([&] { group_norm(zeros({4}), 2); }).find("expected an input [N, C, ...]"), std::string::npos);
  EXPECT_NE(error_of([&] { group_norm(x, 2, {.weight = ones({3})}); }).find("weight of shape [4]"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
