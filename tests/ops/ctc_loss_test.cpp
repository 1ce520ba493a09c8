#include <cmath>

#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/loss/loss.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/softmax/softmax.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using Labels = std::vector<std::int64_t>;

/// What is left of a path when repetitions, and then blanks, are taken out.
Labels collapsed(const Labels& path, std::int64_t blank) {
  Labels out;
  for (std::size_t t = 0; t < path.size(); ++t)
    if (path[t] != blank && (t == 0 || path[t] != path[t - 1])) out.push_back(path[t]);
  return out;
}

/// Minus the logarithm of the sum over all paths that collapse to `labels`.
double plain_loss(const Tensor& log_probs, std::int64_t sample, std::int64_t steps, const Labels& labels,
                  std::int64_t blank) {
  const std::int64_t classes = log_probs.size(2);
  double total = 0.0;
  for (std::int64_t number = 0; number < std::llround(std::pow(classes, steps)); ++number) {
    Labels path;
    double log = 0.0;
    std::int64_t rest = number;
    for (std::int64_t t = 0; t < steps; ++t, rest /= classes) {
      path.push_back(rest % classes);
      log += log_probs[t][sample][rest % classes].item();
    }
    if (collapsed(path, blank) == labels) total += std::exp(log);
  }
  return -std::log(total);
}

Tensor scores() {
  return make_leaf({5, 3, 3});
}
const Labels kInputs{5, 4, 5}, kLengths{2, 2, 0};
Tensor targets() {
  return tensor<std::int64_t>({1, 2, 1, 1, 2, 2}).view({3, 2});
}

TEST(CtcLoss, IsTheSumOverAllPaths) {
  const Tensor log_probs = log_softmax(scores(), -1).detach();
  const Tensor losses = ctc_loss(log_probs, targets(), kInputs, kLengths, {.reduction = Reduction::none});
  const Labels labels[] = {{1, 2}, {1, 1}, {}};
  for (std::int64_t i = 0; i < 3; ++i)
    EXPECT_NEAR(losses[i].item(), plain_loss(log_probs, i, kInputs[static_cast<std::size_t>(i)], labels[i], 0), 1e-12);
  const Tensor mean = ctc_loss(log_probs, tensor<std::int64_t>({1, 2, 1, 1}), tensor(kInputs), tensor(kLengths));
  EXPECT_NEAR(mean.item(), (losses[0].item() / 2 + losses[1].item() / 2 + losses[2].item()) / 3, 1e-12);
  const Tensor other = ctc_loss(log_probs, tensor<std::int64_t>({0, 2}), Labels{5, 5, 5}, Labels{1, 1, 0},
                                {.blank = 1, .reduction = Reduction::sum});
  EXPECT_NEAR(
      other.item(),
      plain_loss(log_probs, 0, 5, {0}, 1) + plain_loss(log_probs, 1, 5, {2}, 1) + plain_loss(log_probs, 2, 5, {}, 1),
      1e-12);
}

TEST(CtcLoss, GradientsThroughTheLogarithms) {
  check_op({.name = "",
            .inputs = [] { return TensorList{scores()}; },
            .run =
                [](const TensorList& in) {
                  const Tensor log_probs = log_softmax(in[0], -1);
                  return TensorList{ctc_loss(log_probs, targets(), kInputs, kLengths, {.reduction = Reduction::none})};
                },
            .slack = 10.0,
            .halves = false});
}

TEST(CtcLoss, WithoutAnAlignmentIsInfiniteOrZero) {
  const Tensor x = scores();
  const Labels inputs{2, 1, 0}, lengths{2, 2, 0};  // too short for two labels, and nothing at all
  const auto loss = [&](bool zero) {
    return ctc_loss(log_softmax(x, -1), targets(), inputs, lengths,
                    {.reduction = Reduction::none, .zero_infinity = zero});
  };
  EXPECT_EQ(loss(false)[1].item(), INFINITY);
  EXPECT_EQ(loss(false)[2].item(), 0.0);
  EXPECT_EQ(loss(true)[1].item(), 0.0);
  loss(false).sum().backward();
  EXPECT_TRUE(isnan(x.grad().select(1, 1).slice(0, 0, 1)).all().item<bool>());
  EXPECT_TRUE(isfinite(x.grad().select(1, 0)).all().item<bool>());
  x.grad().zero_();
  loss(true).sum().backward();
  EXPECT_TRUE(isfinite(x.grad()).all().item<bool>());
  EXPECT_EQ(x.grad().select(1, 1).abs().sum().item(), 0.0);
}

TEST(CtcLossErrors, NameTheProblem) {
  const Tensor p = zeros({5, 1, 3});
  const auto error = [&](const Labels& labels, std::int64_t in, std::int64_t out, std::int64_t blank = 0) {
    return error_of([&] { ctc_loss(p, tensor(labels), Labels{in}, Labels{out}, {.blank = blank}); });
  };
  EXPECT_NE(error({1}, 6, 1).find("sample 0: expected an input length in [0, 5], found 6"), std::string::npos);
  EXPECT_NE(error({1}, 5, 2).find("sample 0: expected a target length in [0, 1], found 2"), std::string::npos);
  EXPECT_NE(error({3}, 5, 1).find("found 3 at 0"), std::string::npos);
  EXPECT_NE(error({0}, 5, 1).find("other than blank, 0"), std::string::npos);
  EXPECT_NE(error({1}, 5, 1, 3).find("a blank in [0, 3)"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
