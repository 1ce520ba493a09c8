#include <gtest/gtest.h>

#include "lockstep/autograd/ops/loss/loss.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

OpCase mse_case(const Shape& sizes, Reduction reduction) {
  return {.name = "",
          .inputs =
              [=] {
                return TensorList{make_leaf(sizes, 1), make_leaf(sizes, 2)};
              },
          .run = [=](const TensorList& in) { return TensorList{mse_loss(in[0], in[1], {.reduction = reduction})}; },
          .expected =
              [=](const TensorList& in) {
                const Tensor each = empty(sizes, {.dtype = kFloat64});
                double sum = 0;
                for (std::int64_t i = 0; i < each.numel(); ++i)
                  sum += each.data<double>()[i] = std::pow(in[0].data<double>()[i] - in[1].data<double>()[i], 2);
                if (reduction == Reduction::none) return TensorList{each};
                const double count = reduction == Reduction::mean ? static_cast<double>(each.numel()) : 1.0;
                return TensorList{scalar_tensor(sum / count, {.dtype = kFloat64})};
              }};
}

TEST(MseLoss, ValuesAndGradients) {
  for (const Reduction reduction : kReductions) {
    for (const Shape& sizes : {Shape{}, Shape{5}, Shape{2, 3, 4}}) check_op(mse_case(sizes, reduction));
    check_threads(mse_case({100003}, reduction));
  }
}

TEST(MseLoss, Broadcasts) {
  for (const Reduction reduction : kReductions)
    check_op({.name = "",
              .inputs =
                  [] {
                    return TensorList{make_leaf({4, 1}), make_leaf({3}, 2)};
                  },
              .run = [=](const TensorList& in) { return TensorList{mse_loss(in[0], in[1], {.reduction = reduction})}; },
              .expected =
                  [=](const TensorList& in) {
                    return TensorList{mse_loss(copy_contiguous(in[0].detach().expand({4, 3})),
                                               copy_contiguous(in[1].detach().expand({4, 3})),
                                               {.reduction = reduction})};
                  }});
}

TEST(MseLoss, EmptyInputs) {
  const Tensor x = make_leaf({0, 3}), y = make_input({0, 3});
  EXPECT_TRUE(std::isnan(mse_loss(x, y).item()));
  EXPECT_EQ(mse_loss(x, y, {.reduction = Reduction::sum}).item(), 0.0);
  mse_loss(x, y).backward();
  EXPECT_EQ(x.grad().numel(), 0);
}

TEST(MseLoss, ErrorsNameTheProblem) {
  const Tensor x = make_input({4, 1});
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] {
         mse_loss(x, make_input({3, 2}));
       },
       "[mse_loss]"},
      {[&] {
         mse_loss(x, make_input({4, 1}, 1, kFloat32));
       },
       "expected a target of dtype float64"},
      {[&] {
         mse_loss(x, move_values(x, {kCPU, 1}));
       },
       "the target is on cpu:1"},
      {[&] { mse_loss(zeros({2}, {.dtype = kInt64}), x); }, "expected a floating-point input, found int64"},
      {[&] { mse_loss(x, {}); }, "target is undefined"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::testing
