#include "lockstep/autograd/ops/nll_loss/nll_loss.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/gradcheck.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

Tensor with_shape(const Tensor& t, const Shape& sizes) {
  return t.as_strided(sizes, contiguous_strides(sizes), 0);
}

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

TEST(NllLoss, PositionsPickTheirOwnClass) {
  const std::vector<std::int64_t> classes = {0, 2, 1, 1, 2, 2, 0, 1};
  const Tensor x = make_input({2, 3, 2, 2});
  const Tensor loss = nll_loss(x, with_shape(tensor(classes), {2, 2, 2}), {.reduction = Reduction::none});
  ASSERT_EQ(loss.sizes(), Shape({2, 2, 2}));
  for (std::int64_t i = 0; i < 8; ++i) {
    const std::int64_t sample = i / 4, position = i % 4, c = classes[static_cast<std::size_t>(i)];
    EXPECT_EQ(loss.data<double>()[i], -x.data<double>()[sample * 12 + c * 4 + position]);
  }
}

TEST(NllLoss, ValuesAndGradients) {
  for (const Reduction reduction : kReductions)
    for (const std::int64_t rows : {3, 20000}) {
      std::vector<std::int64_t> labels;
      for (std::int64_t i = 0; i < rows; ++i) labels.push_back((i + 1) % 4);
      const Tensor target = tensor(labels);
      const OpCase test_case{
          .name = "",
          .inputs =
              [=] {
                return TensorList{make_leaf({rows, 4}), target, make_input({4}, 9, kFloat64, 0.5, 1)};
              },
          .run =
              [=](const TensorList& in) {
                return TensorList{nll_loss(in[0], in[1], {.reduction = reduction}),
                                  nll_loss(in[0], in[1], {.reduction = reduction, .ignore_index = 2, .weight = in[2]})};
              },
          .slack = 2};
      rows < 100 ? check_op(test_case) : check_threads(test_case);
    }
}

TEST(NllLoss, AVectorIsOneSample) {
  const Tensor x = make_leaf({4});
  const auto loss = [](const TensorList& in) { return nll_loss(in[0], scalar_tensor(1, {.dtype = kInt64})); };
  EXPECT_EQ(loss({x}).item(), -x.data<double>()[1]);
  gradcheck(loss, {x});
}

TEST(NllLoss, NothingThatCountsGivesNanForTheMeanAndZeroForTheSum) {
  const Tensor ignored = tensor<std::int64_t>({-100, -100});
  const Tensor none = empty({0}, {.dtype = kInt64});
  EXPECT_TRUE(std::isnan(nll_loss(make_input({2, 3}), ignored).item()));
  EXPECT_TRUE(std::isnan(nll_loss(make_input({0, 3}), none).item()));
  EXPECT_EQ(nll_loss(make_input({2, 3}), ignored, {.reduction = Reduction::sum}).item(), 0.0);
  EXPECT_EQ(nll_loss(make_input({0, 3}), none, {.reduction = Reduction::sum}).item(), 0.0);
  EXPECT_EQ(nll_loss(make_input({0, 3}), none, {.reduction = Reduction::none}).numel(), 0);
}

TEST(NllLoss, ErrorsNameTheProblem) {
  const Tensor x = make_input({2, 3});
  const Tensor good = tensor<std::int64_t>({0, 1});
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] {
         nll_loss(x, tensor<std::int64_t>({0, 3}));
       },
       "[nll_loss] target of row 1 is 3, expected a class index in [0, 3) for 3 classes or ignore_index (-100)"},
      {[&] {
         nll_loss(x, tensor<std::int64_t>({-1, 0}));
       },
       "target of row 0 is -1"},
      {[&] { nll_loss(x, tensor<std::int64_t>({0})); }, "expected a target of shape [2]"},
      {[&] {
         nll_loss(x, tensor<float>({0, 1}));
       },
       "expected int64 class indices as target, found float32"},
      {[&] { nll_loss(good, good); }, "expected a floating-point input, found int64"},
      {[&] { nll_loss(scalar_tensor(1), good); }, "found a scalar"},
      {[&] { nll_loss(x, good, {.weight = make_input({4})}); }, "one weight for each of 3 classes, found shape [4]"},
      {[&] { nll_loss(x, good, {.weight = make_input({3}, 1, kFloat32)}); }, "found float32 on cpu:0"},
      {[&] { nll_loss(x, good, {.weight = make_leaf({3})}); }, "takes no gradient"},
      {[&] {
         nll_loss(x, move_values(good, {kCPU, 1}));
       },
       "the target is on cpu:1, the input on cpu:0"},
      {[&] { nll_loss(Tensor(), good); }, "input is undefined"},
      {[&] {
         nll_loss(make_input({2, 0}), good);
       },
       "has no classes"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::testing
