#include "lockstep/autograd/ops/linear/linear.h"

#include <algorithm>
#include <vector>

#include "lockstep/autograd/ops/unary/unary.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  Shape x;
  std::int64_t outputs;
  bool bias;
  bool relu;
};

Tensor apply(const Case& c, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return c.relu ? relu(linear(x, weight, bias)) : linear(x, weight, bias);
}

Tensor expected_linear(const Case& c, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::vector<double> v = x.to_vector<double>(), w = weight.to_vector<double>();
  const std::vector<double> b = bias.defined() ? bias.to_vector<double>() : std::vector<double>();
  const std::int64_t inputs = c.x.back();
  Shape sizes = c.x;
  sizes[sizes.dim() - 1] = c.outputs;
  const Tensor out = empty(sizes, {.dtype = kFloat64});
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    const std::int64_t row = i / c.outputs, column = i % c.outputs;
    double sum = bias.defined() ? b[static_cast<std::size_t>(column)] : 0.0;
    for (std::int64_t p = 0; p < inputs; ++p)
      sum += v[static_cast<std::size_t>(row * inputs + p)] * w[static_cast<std::size_t>(column * inputs + p)];
    out.data<double>()[i] = c.relu ? std::max(sum, 0.0) : sum;
  }
  return out;
}

class LinearCases : public ::testing::TestWithParam<Case> {};

TEST_P(LinearCases, values_and_gradients) {
  const Case& c = GetParam();
  check_op(
      {.name = "",
       .inputs =
           [=] {
             return TensorList{make_leaf(c.x, 1), make_leaf({c.outputs, c.x.back()}, 2), make_leaf({c.outputs}, 3)};
           },
       .run = [=](const TensorList& in) { return TensorList{apply(c, in[0], in[1], c.bias ? in[2] : Tensor())}; },
       .slack = 2,
       .expected =
           [=](const TensorList& in) {
             return TensorList{expected_linear(c, in[0], in[1], c.bias ? in[2] : Tensor())};
           }});
}

const auto kSmall =
    ::testing::Values(Case{{3, 4}, 5, true, false}, Case{{3, 4}, 5, false, false}, Case{{3, 4}, 5, true, true},
                      Case{{3, 4}, 5, false, true}, Case{{4}, 2, true, false}, Case{{2, 3, 4}, 5, true, true},
                      Case{{0, 4}, 5, true, false}, Case{{3, 0}, 2, true, true}, Case{{3, 0}, 2, false, false},
                      Case{{3, 4}, 0, true, false});

INSTANTIATE_TEST_SUITE_P(Small, LinearCases, kSmall);
INSTANTIATE_TEST_SUITE_P(Large, LinearCases,
                         ::testing::Values(Case{{130, 70}, 65, true, true}, Case{{256, 500}, 512, true, false}));

TEST(Linear, gradients_of_large_layers_equal_float64) {
  for (const std::int64_t rows : {64, 300}) {
    std::vector<Tensor> grads[2];
    for (const DType dtype : {kFloat32, kFloat64}) {
      const Tensor x = make_leaf({rows, 300}, 1, dtype), w = make_leaf({200, 300}, 2, dtype);
      const Tensor b = make_leaf({200}, 3, dtype);
      relu(linear(x, w, b)).backward(make_input({rows, 200}, 4, dtype));
      grads[dtype == kFloat64] = {x.grad(), w.grad(), b.grad()};
    }
    for (int i = 0; i < 3; ++i) expect_close(grads[0][i], grads[1][i], 1e-4, 1e-4);
  }
}

TEST(Linear, no_gradient_for_an_input_that_needs_none) {
  const Tensor x = make_input({3, 4}), w = make_leaf({2, 4});
  linear(x, w).backward(ones({3, 2}, {.dtype = kFloat64}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(w.grad().defined());
}

TEST(Linear, relu_keeps_nan) {
  const Tensor x = full({1, 1}, std::nan("")), w = ones({1, 1});
  EXPECT_TRUE(std::isnan(relu(linear(x, w)).item()));
}

TEST(Linear, one_output_and_integers) {
  check_op({.name = "",
            .inputs =
                [] {
                  return TensorList{make_leaf({2, 3, 4}), make_leaf({4}, 2), make_leaf({}, 3)};
                },
            .run = [](const TensorList& in) { return TensorList{linear(in[0], in[1], in[2])}; },
            .expected =
                [](const TensorList& in) {
                  const Tensor weight = in[1].detach().as_strided({1, 4}, {4, 1}, 0);
                  const Tensor bias = in[2].detach().as_strided({1}, {1}, 0);
                  return TensorList{linear(copy_contiguous(in[0].detach()), weight, bias).view({2, 3})};
                }});
  const Tensor x = tensor<std::int64_t>({1, 2, 3, 4}).view({2, 2});
  EXPECT_EQ(linear(x, x, tensor<std::int64_t>({1, -1})).to_vector<double>(), (std::vector<double>{6, 10, 12, 24}));
}

// Few rows of a half type are computed a block of the weight at a time, with the bits of the whole as float32.
TEST(Linear, HalfTypesHaveTheBitsOfFloatsRounded) {
  for (const DType dtype : {kBFloat16, kFloat16})
    for (const std::int64_t rows : {1, 3, 16, 17})
      for (const auto& [outputs, inputs] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {33, 7}, {70, 513}, {200, 512}})
        for (const bool relus : {false, true}) {
          const Tensor x = make_input({rows, inputs}, 1, kFloat32).to(dtype),
                       weight = make_input({outputs, inputs}, 2, kFloat32).to(dtype),
                       bias = make_input({outputs}, 3, kFloat32).to(dtype);
          const Tensor wide = linear(x.to(kFloat32), weight.to(kFloat32), bias.to(kFloat32)).to(dtype);
          const Tensor own = linear(x, weight, bias);
          EXPECT_TRUE(same_bits(relus ? relu(own) : own, relus ? relu(wide) : wide))
              << name(dtype) << " " << rows << " x " << inputs << " x " << outputs;
        }
}

TEST(Linear, errors_name_the_sizes) {
  const auto message = [](const Tensor& x, const Tensor& w, const Tensor& b) {
    return error_of([&] { linear(x, w, b); });
  };
  EXPECT_NE(message(ones({2, 3}), ones({4, 5}), {}).find("expected x of sizes [*, 5]"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({1, 4, 3}), {}).find("[out, in]"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({3}), ones({3})).find("a bias without dimensions"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({4, 3}), ones({3})).find("bias of sizes [4], found [3]"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({4, 3}, {.dtype = kFloat64}), {}).find("weight is float64"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({4, 3}, {.device = {kCPU, 1}}), {}).find("cpu:1"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}, {.dtype = kInt64}), ones({4, 3}), {}).find("weight is float32"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
