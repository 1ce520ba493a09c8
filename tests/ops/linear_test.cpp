#include "lockstep/autograd/ops/linear/linear.h"

#include <algorithm>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::make_strided;

struct Case {
  Shape x;
  std::int64_t outputs;
  bool bias;
  bool relu;
};

Tensor apply(const Case& c, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return c.relu ? linear_relu(x, weight, bias) : linear(x, weight, bias);
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

class LinearCases : public ::testing::TestWithParam<Case> {
 protected:
  Tensor bias(DType dtype = kFloat64) const {
    return GetParam().bias ? make_input({GetParam().outputs}, 3, dtype) : Tensor();
  }
};

TEST_P(LinearCases, values_and_reference_kernel) {
  const Case& c = GetParam();
  for (DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = make_input(c.x, 1, dtype), weight = make_input({c.outputs, c.x.back()}, 2, dtype);
    const double unit = dtype == kBFloat16 ? 8e-3 : dtype == kFloat16 ? 1e-3 : dtype == kFloat32 ? 1e-5 : 1e-12;
    const Tensor expected = expected_linear(c, x, weight, bias(dtype));
    expect_close(apply(c, x, weight, bias(dtype)), expected, unit, unit);
    set_reference_kernels(true);
    const Tensor plain = apply(c, x, weight, bias(dtype));
    set_reference_kernels(false);
    expect_close(plain, expected, unit, unit);
  }
}

TEST_P(LinearCases, strided) {
  const Case& c = GetParam();
  const Tensor x = make_input(c.x, 1), weight = make_input({c.outputs, c.x.back()}, 2), b = bias();
  expect_close(apply(c, make_strided(x), make_strided(weight), b.defined() ? make_strided(b) : b),
               expected_linear(c, x, weight, b), 1e-12, 1e-12);
}

class LinearGradients : public ::testing::TestWithParam<Case> {};

TEST_P(LinearGradients, equal_central_differences) {
  const Case& c = GetParam();
  std::vector<Tensor> inputs = {make_leaf(c.x, 1), make_leaf({c.outputs, c.x.back()}, 2)};
  if (c.bias) inputs.push_back(make_leaf({c.outputs}, 3));
  gradcheck([&](const std::vector<Tensor>& in) { return apply(c, in[0], in[1], in.size() > 2 ? in[2] : Tensor()); },
            inputs);
}

const auto kSmall =
    ::testing::Values(Case{{3, 4}, 5, true, false}, Case{{3, 4}, 5, false, false}, Case{{3, 4}, 5, true, true},
                      Case{{3, 4}, 5, false, true}, Case{{4}, 2, true, false}, Case{{2, 3, 4}, 5, true, true},
                      Case{{0, 4}, 5, true, false}, Case{{3, 0}, 2, true, true}, Case{{3, 0}, 2, false, false},
                      Case{{3, 4}, 0, true, false});

INSTANTIATE_TEST_SUITE_P(Small, LinearCases, kSmall);
INSTANTIATE_TEST_SUITE_P(Small, LinearGradients, kSmall);
INSTANTIATE_TEST_SUITE_P(Large, LinearCases, ::testing::Values(Case{{130, 70}, 65, true, true}));

TEST(Linear, gradients_of_large_layers_equal_float64) {
  for (const std::int64_t rows : {64, 300}) {
    std::vector<Tensor> grads[2];
    for (const DType dtype : {kFloat32, kFloat64}) {
      const Tensor x = make_leaf({rows, 300}, 1, dtype), w = make_leaf({200, 300}, 2, dtype);
      const Tensor b = make_leaf({200}, 3, dtype);
      linear_relu(x, w, b).backward(make_input({rows, 200}, 4, dtype));
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
  EXPECT_TRUE(std::isnan(linear_relu(x, w).item()));
}

TEST(Linear, thread_count_does_not_change_bits) {
  const int before = num_threads();
  std::vector<std::vector<float>> bits[2];
  for (int run = 0; run < 2; ++run) {
    set_num_threads(run == 0 ? 1 : 3);
    const Tensor x = make_leaf({256, 500}, 1, kFloat32), w = make_leaf({512, 500}, 2, kFloat32);
    const Tensor b = make_leaf({512}, 3, kFloat32);
    const Tensor y = linear_relu(x, w, b);
    y.backward(make_input({256, 512}, 4, kFloat32));
    for (const Tensor& t : {y, x.grad(), w.grad(), b.grad()}) bits[run].push_back(t.to_vector<float>());
  }
  set_num_threads(before);
  EXPECT_EQ(bits[0], bits[1]);
}

TEST(Linear, errors_name_the_sizes) {
  const auto message = [](const Tensor& x, const Tensor& w, const Tensor& b) {
    return testing::error_of([&] { linear(x, w, b); });
  };
  EXPECT_NE(message(ones({2, 3}), ones({4, 5}), {}).find("expected x of sizes [*, 5]"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({3}), {}).find("[out, in]"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({4, 3}), ones({3})).find("bias of sizes [4], found [3]"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({4, 3}, {.dtype = kFloat64}), {}).find("weight is float64"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}), ones({4, 3}, {.device = {kCPU, 1}}), {}).find("cpu:1"), std::string::npos);
  EXPECT_NE(message(ones({2, 3}, {.dtype = kInt64}), ones({4, 3}), {}).find("floating-point"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
