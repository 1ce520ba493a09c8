#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t kIgnored = -100;

/// Class indices in [0, classes), in no order; every seventh is ignored.
Tensor make_targets(const Shape& sizes, std::int64_t classes) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < sizes.numel(); ++i) values.push_back(i % 7 == 6 ? kIgnored : i * 31 % classes);
  return tensor(values).view(sizes);
}

struct Classes {
  const char* name;
  Shape sizes;
  Reduction reduction = Reduction::mean;
  double smoothing = 0.0;
  bool weighted = false;
};

TensorList class_inputs(const Classes& c) {
  Shape target = c.sizes;
  target.erase(c.sizes.dim() == 1 ? 0 : 1);
  const std::int64_t classes = c.sizes.dim() == 1 ? c.sizes[0] : c.sizes[1];
  return {make_leaf(c.sizes, 1, kFloat64, -3.0, 3.0), make_targets(target, classes),
          make_input({classes}, 2, kFloat64, 0.5, 1.5)};
}

OpCase entropy(const Classes& c) {
  return {.name = std::string("cross_entropy_") + c.name,
          .inputs = [=] { return class_inputs(c); },
          .run =
              [=](const TensorList& in) {
                CrossEntropyOptions options{.reduction = c.reduction, .label_smoothing = c.smoothing};
                if (c.weighted) options.weight = in[2];
                return TensorList{cross_entropy(in[0], in[1], options)};
              },
          .slack = 2.0};
}

OpCase likelihood(const Classes& c) {
  return {.name = std::string("nll_loss_") + c.name,
          .inputs = [=] { return class_inputs(c); },
          .run =
              [=](const TensorList& in) {
                NllLossOptions options{.reduction = c.reduction};
                if (c.weighted) options.weight = in[2];
                return TensorList{nll_loss(in[0], in[1], options)};
              },
          .slack = 2.0};
}

OpCase squares(const char* name, const Shape& sizes, Reduction reduction) {
  return {.name = std::string("mse_loss_") + name,
          .inputs =
              [=] {
                return TensorList{make_leaf(sizes, 1), make_leaf(sizes, 2)};
              },
          .run = [=](const TensorList& in) { return TensorList{mse_loss(in[0], in[1], {.reduction = reduction})}; }};
}

OpCase binary_entropy(const char* name, const Shape& sizes, Reduction reduction, bool weight = false,
                      bool pos_weight = false) {
  return {.name = std::string("bce_with_logits_") + name,
          .inputs =
              [=] {
                return TensorList{make_leaf(sizes, 1, kFloat64, -8.0, 8.0), make_leaf(sizes, 2, kFloat64, 0.0, 1.0),
                                  make_input(sizes, 3, kFloat64, 0.5, 1.5),
                                  make_input({sizes.back()}, 4, kFloat64, 0.5, 3.0)};
              },
          .run =
              [=](const TensorList& in) {
                BceWithLogitsOptions options{.reduction = reduction};
                if (weight) options.weight = in[2];
                if (pos_weight) options.pos_weight = in[3];
                return TensorList{binary_cross_entropy_with_logits(in[0], in[1], options)};
              }};
}

const OpCase kCases[] = {
    entropy({"mnist", {64, 10}}),
    entropy({"no_batch", {7}}),
    entropy({"sum", {33, 10}, Reduction::sum}),
    entropy({"none", {33, 10}, Reduction::none}),
    entropy({"weighted", {33, 12}, Reduction::mean, 0.0, true}),
    entropy({"smoothed", {33, 10}, Reduction::mean, 0.1}),
    entropy({"smoothed_weighted", {33, 12}, Reduction::sum, 0.2, true}),
    entropy({"smoothed_none", {33, 12}, Reduction::none, 0.2, true}),
    entropy({"many_rows", {2600, 5}}),
    entropy({"warp", {41, 100}, Reduction::mean, 0.1, true}),
    entropy({"warp_many_rows", {300, 37}}),
    entropy({"block", {3, 1500}, Reduction::mean, 0.1, true}),
    entropy({"block_odd", {3, 1503}}),
    entropy({"images", {3, 5, 4, 6}}),
    entropy({"images_none", {3, 50, 4}, Reduction::none, 0.1, true}),
    entropy({"empty_sum", {0, 4}, Reduction::sum}),
    entropy({"empty_mean", {0, 4}}),
    entropy({"empty_none", {0, 4}, Reduction::none}),
    likelihood({"mean", {64, 10}}),
    likelihood({"no_batch", {7}}),
    likelihood({"sum", {33, 10}, Reduction::sum}),
    likelihood({"none", {33, 10}, Reduction::none}),
    likelihood({"weighted", {33, 12}, Reduction::mean, 0.0, true}),
    likelihood({"many_rows", {2600, 5}}),
    likelihood({"images", {3, 5, 4, 6}, Reduction::mean, 0.0, true}),
    likelihood({"images_none", {3, 50, 4}, Reduction::none}),
    likelihood({"empty_sum", {0, 4}, Reduction::sum}),
    likelihood({"empty_mean", {0, 4}}),
    squares("mean", {7, 37}, Reduction::mean),
    squares("sum", {7, 37}, Reduction::sum),
    squares("none", {7, 37}, Reduction::none),
    squares("large", {3, 7001}, Reduction::mean),
    squares("scalar", {}, Reduction::mean),
    squares("empty_mean", {0, 3}, Reduction::mean),
    squares("empty_sum", {0, 3}, Reduction::sum),
    squares("empty_none", {0, 3}, Reduction::none),
    binary_entropy("mean", {7, 37}, Reduction::mean),
    binary_entropy("sum", {7, 37}, Reduction::sum, true),
    binary_entropy("none", {7, 37}, Reduction::none, true, true),
    binary_entropy("pos_weight", {7, 37}, Reduction::mean, false, true),
    binary_entropy("large", {3, 3001}, Reduction::mean),
    binary_entropy("empty_mean", {0, 3}, Reduction::mean),
    binary_entropy("empty_none", {0, 3}, Reduction::none),
};

class CudaLoss : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaLoss, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaLoss, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

using ClassLoss = Tensor (*)(const Tensor& scores, const Tensor& target, Reduction reduction);

class CudaBadTarget : public ::testing::TestWithParam<std::tuple<ClassLoss, std::int64_t>> {};

// See Note [Targets on a device].
TEST_P(CudaBadTarget, MakesTheLossNaN) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const auto& [loss, bad] = GetParam();
  const Tensor target = tensor<std::int64_t>({1, bad, 2}, test_device());
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    Tensor scores = move_values(make_input({3, 5}, 1, kFloat32), test_device());
    scores.set_requires_grad(true);
    const Tensor result = loss(scores, target, reduction);
    const std::vector<double> values = result.to_vector<double>();
    ASSERT_EQ(values.size(), reduction == Reduction::none ? 3u : 1u);
    for (std::size_t row = 0; row < values.size(); ++row)
      EXPECT_EQ(std::isnan(values[row]), row == 1 || reduction != Reduction::none) << row;
    result.backward(ones(result.sizes(), {.device = test_device()}));
    const std::vector<double> gradient = scores.grad().to_vector<double>();
    const auto is_nan = [](double value) { return std::isnan(value); };
    EXPECT_TRUE(std::any_of(gradient.begin() + 5, gradient.begin() + 10, is_nan));
    if (reduction == Reduction::none) {
      EXPECT_FALSE(std::any_of(gradient.begin(), gradient.begin() + 5, is_nan));
      EXPECT_FALSE(std::any_of(gradient.begin() + 10, gradient.end(), is_nan));
    }
  }
}
constexpr ClassLoss kEntropy = [](const Tensor& scores, const Tensor& target, Reduction reduction) {
  return cross_entropy(scores, target, {.reduction = reduction});
};
constexpr ClassLoss kLikelihood = [](const Tensor& scores, const Tensor& target, Reduction reduction) {
  return nll_loss(scores, target, {.reduction = reduction});
};
INSTANTIATE_TEST_SUITE_P(Ops, CudaBadTarget,
                         ::testing::Combine(::testing::Values(kEntropy, kLikelihood),
                                            ::testing::Values(std::int64_t{-1}, std::int64_t{5},
                                                              std::int64_t{1} << 40)));

}  // namespace
}  // namespace lockstep::testing
