#include <gtest/gtest.h>

#include "lockstep/autograd/ops/loss/loss.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

constexpr Tensor (*bce)(const Tensor&, const Tensor&, const BceWithLogitsOptions&) = binary_cross_entropy_with_logits;

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

TEST(BceWithLogits, ValuesAndGradients) {
  for (const Reduction reduction : kReductions)
    for (const std::int64_t rows : {3, 12503}) {
      const Shape sizes{rows, 4};
      const OpCase test_case{
          .name = "",
          .inputs =
              [=] {
                return TensorList{make_leaf(sizes, 1, kFloat64, -3, 3), make_leaf(sizes, 2, kFloat64, 0, 1),
                                  make_input({rows, 1}, 5, kFloat64, 0.5, 2), make_input({4}, 6, kFloat64, 0.5, 2)};
              },
          .run =
              [=](const TensorList& in) {
                return TensorList{bce(in[0], in[1], {.reduction = reduction}),
                                  bce(in[0], in[1], {.reduction = reduction, .weight = in[2], .pos_weight = in[3]})};
              },
          .slack = 2};
      rows < 100 ? check_op(test_case) : check_threads(test_case);
    }
}

TEST(BceWithLogits, LargeLogitsStayFinite) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    const Tensor x = cast_values(tensor<double>({1000, -1000, 1000, -1000, 0}), dtype);
    const Tensor y = cast_values(tensor<double>({1, 0, 0, 1, 0.5}), dtype);
    x.set_requires_grad(true);
    const Tensor loss = bce(x, y, {.reduction = Reduction::none});
    expect_close(loss, tensor<double>({0, 0, 1000, 1000, 0.6931471805599453}), 1e-6, 1e-8);
    loss.backward(ones_like(loss));
    expect_close(x.grad(), tensor<double>({0, 0, 1, -1, 0}), 1e-6, 1e-8);
  }
}

TEST(BceWithLogits, EmptyInputs) {
  const Tensor x = make_leaf({0, 3});
  EXPECT_TRUE(std::isnan(bce(x, make_input({0, 3}), {}).item()));
  EXPECT_EQ(bce(x, make_input({0, 3}), {.reduction = Reduction::sum}).item(), 0.0);
  EXPECT_EQ(bce(x, make_input({0, 3}), {.reduction = Reduction::none}).numel(), 0);
}

TEST(BceWithLogits, ErrorsNameTheProblem) {
  const Tensor x = make_input({4, 3}), y = make_input({4, 3}, 2);
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] { bce(x, make_input({4}), {}); },
       "[binary_cross_entropy_with_logits] expected a target of the input's shape [4, 3], found [4]"},
      {[&] { bce(x, y, {.weight = make_input({2})}); }, "[2]"},
      {[&] {
         bce(x, y, {.pos_weight = make_input({2, 4, 3})});
       },
       "expected pos_weight to broadcast to the input's shape [4, 3], found [2, 4, 3]"},
      {[&] { bce(x, y, {.weight = make_input({3}, 1, kFloat32)}); }, "expected weight to be float64"},
      {[&] { bce(x, y, {.pos_weight = make_leaf({3})}); }, "pos_weight takes no gradient"},
      {[&] {
         bce(x, move_values(y, {kCPU, 1}), {});
       },
       "the target is on cpu:1"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::testing
