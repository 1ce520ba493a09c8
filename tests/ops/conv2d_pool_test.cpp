// A convolution under a pool and a relu, whose kernels compute them together.

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/conv2d/conv2d_pool_kernels.h"
#include "lockstep/autograd/ops/conv2d/conv2d_pool_sums.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/cpu/instruction_set.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::make_strided;

Tensor block(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {}) {
  return relu(max_pool2d(conv2d(x, weight, bias, options), 2));
}

struct Case {
  const char* name;
  Shape x, weight;
  bool bias;
  Conv2dOptions options = {};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

struct Results {
  Tensor y, x_grad, weight_grad, bias_grad;
};

// With some gradients zero, as dropout leaves them.
Results run(const Case& c, DType dtype = kFloat32, bool x_needs_grad = true) {
  const Tensor x = make_input(c.x, 1, dtype), weight = make_leaf(c.weight, 2, dtype);
  if (x_needs_grad) x.set_requires_grad(true);
  const Tensor bias = c.bias ? make_leaf({c.weight[0]}, 3, dtype) : Tensor();
  const Tensor y = block(x, weight, bias, c.options);
  y.backward(make_input(y.sizes(), 4, dtype).clamp(0.0, std::nullopt));
  return {y, x.grad(), weight.grad(), c.bias ? bias.grad() : Tensor()};
}

Results run_reference(const Case& c) {
  set_reference_kernels(true);
  Results results = run(c);
  set_reference_kernels(false);
  return results;
}

class Conv2dPoolCases : public ::testing::TestWithParam<Case> {};

TEST_P(Conv2dPoolCases, equals_the_three_operations) {
  const Results expected = run_reference(GetParam()), actual = run(GetParam());
  expect_close(actual.y, expected.y, 2e-5, 2e-5);
  expect_close(actual.x_grad, expected.x_grad, 1e-4, 1e-4);
  expect_close(actual.weight_grad, expected.weight_grad, 1e-4, 1e-4);
  if (GetParam().bias) expect_close(actual.bias_grad, expected.bias_grad, 1e-4, 1e-4);
}

TEST_P(Conv2dPoolCases, thread_count_does_not_change_bits) {
  const int before = num_threads();
  set_num_threads(1);
  const Results one = run(GetParam());
  set_num_threads(3);
  const Results three = run(GetParam());
  set_num_threads(before);
  EXPECT_EQ(one.y.to_vector<float>(), three.y.to_vector<float>());
  EXPECT_EQ(one.x_grad.to_vector<float>(), three.x_grad.to_vector<float>());
  EXPECT_EQ(one.weight_grad.to_vector<float>(), three.weight_grad.to_vector<float>());
}

// x that is at no multiple of a vector's size in memory.
TEST_P(Conv2dPoolCases, alignment_does_not_change_bits) {
  const Case& c = GetParam();
  const Tensor x = make_input(c.x, 1, kFloat32), weight = make_input(c.weight, 2, kFloat32);
  const Tensor space = empty({x.numel() + 1});
  const Tensor moved = space.as_strided(c.x, x.strides(), 1);
  copy_values(x, moved);
  EXPECT_EQ(block(moved, weight, {}, c.options).to_vector<float>(), block(x, weight, {}, c.options).to_vector<float>());
}

TEST_P(Conv2dPoolCases, without_a_gradient_of_x) {
  const Results with = run(GetParam()), without = run(GetParam(), kFloat32, false);
  EXPECT_FALSE(without.x_grad.defined());
  EXPECT_EQ(with.weight_grad.to_vector<float>(), without.weight_grad.to_vector<float>());
}

INSTANTIATE_TEST_SUITE_P(
    Geometry, Conv2dPoolCases,
    ::testing::Values(
        Case{"lenet1", {5, 1, 28, 28}, {10, 1, 5, 5}, true}, Case{"lenet2", {9, 10, 12, 12}, {20, 10, 5, 5}, true},
        Case{"cnn2", {3, 32, 26, 26}, {64, 32, 3, 3}, true}, Case{"many_images", {70, 1, 12, 12}, {4, 1, 5, 5}, true},
        Case{"no_bias", {2, 3, 9, 9}, {5, 3, 3, 3}, false}, Case{"odd", {2, 3, 11, 13}, {5, 3, 3, 3}, true},
        Case{"padding", {2, 3, 9, 10}, {5, 3, 3, 3}, true, {.padding = 1}},
        Case{"padding_hw", {2, 8, 9, 16}, {6, 8, 3, 5}, true, {.padding = {1, 2}}},
        Case{"wide_padding", {2, 2, 4, 5}, {3, 2, 3, 3}, true, {.padding = 4}},
        Case{"one_by_one", {3, 8, 7, 7}, {5, 8, 1, 1}, true}, Case{"seven", {2, 5, 16, 17}, {7, 5, 7, 7}, true},
        Case{"many_channels", {2, 70, 6, 7}, {9, 70, 3, 3}, true}, Case{"narrow", {2, 3, 10, 5}, {4, 3, 3, 2}, true},
        Case{"eight_channels", {2, 8, 12, 13}, {9, 8, 3, 3}, true},
        Case{"one_window", {2, 3, 4, 4}, {3, 3, 3, 3}, true}, Case{"one_row", {2, 16, 2, 20}, {3, 16, 1, 1}, true},
        Case{"stride", {2, 3, 11, 12}, {5, 3, 3, 3}, true, {.stride = 2}},
        Case{"dilation", {2, 3, 11, 12}, {5, 3, 3, 3}, true, {.padding = 1, .dilation = 2}},
        Case{"groups", {2, 4, 8, 9}, {6, 2, 3, 3}, true, {.padding = 1, .groups = 2}}),
    case_name);

// Rows of a patch that fill no whole vectors: the elements behind them are the next patches'.
TEST(Conv2dPool, a_gradient_that_is_not_finite_reaches_what_it_belongs_to_alone) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const Shape& kernel : {Shape{4, 3, 3, 3}, Shape{4, 3, 1, 1}, Shape{4, 3, 2, 6}}) {
      const auto x_grad = [&] {
        const Tensor x = make_leaf({2, 3, 9, 12}, 1, kFloat32);
        const Tensor y = max_pool2d(conv2d(x, make_input(kernel, 2, kFloat32)), 2);
        const Tensor grad = make_input(y.sizes(), 3, kFloat32);
        grad.data<float>()[grad.numel() / 2 + 1] = value;
        y.backward(grad);
        return x.grad();
      };
      const Tensor actual = x_grad();
      set_reference_kernels(true);
      const Tensor expected = x_grad();
      set_reference_kernels(false);
      EXPECT_EQ(actual.isnan().to(kFloat32).to_vector<float>(), expected.isnan().to(kFloat32).to_vector<float>());
      EXPECT_EQ(actual.isinf().to(kFloat32).to_vector<float>(), expected.isinf().to(kFloat32).to_vector<float>());
    }
}

TEST(Conv2dPool, the_usual_blocks_are_fused) {
  const Tensor x = make_input({2, 1, 28, 28}, 1, kFloat32), w = make_input({10, 1, 5, 5}, 2, kFloat32);
  EXPECT_TRUE(conv2d_pool_supports(conv2d_geometry(x, w, {}, {})));
  EXPECT_FALSE(conv2d_pool_supports(conv2d_geometry(x, w, {}, {.stride = 2})));
  EXPECT_FALSE(conv2d_pool_supports(conv2d_geometry(x, w, {}, {.dilation = 2})));
}

#if defined(__x86_64__)
// Sums of all widths and heights, of no entry to many.
TEST(Conv2dPool, instruction_sets_give_the_same_bits) {
  using namespace conv2d_pool;
  if (!cpu::has_instruction_set(cpu::InstructionSet::avx512)) GTEST_SKIP() << "no AVX-512";
  constexpr std::int64_t kPitch = 301, kTop = 7, kPlaces = 40;
  const std::vector<float> from = make_input({kTop * kPitch + kPlaces}, 1, kFloat32).to_vector<float>();
  const std::vector<float> before = make_input({kTop * kPitch}, 2, kFloat32).to_vector<float>();
  const std::vector<float> values = make_input({50}, 3, kFloat32).to_vector<float>();
  std::vector<std::int32_t> places;
  for (int i = 0; i < 50; ++i) places.push_back(i * 37 % static_cast<int>(kPlaces));
  const auto patches = [&](const SparseSums& by, int runs, int rows, std::int64_t count) {
    std::vector<float> sums = before;
    const int at_once = by.rows[runs - 1];
    for (int r = 0; r < rows; r += at_once)
      by.patches[runs - 1][std::min(at_once, rows - r) - 1](
          {values.data(), places.data(), count}, from.data() + r * kPitch, kPitch, sums.data() + r * kPitch, kPitch);
    return sums;
  };
  const auto weights = [&](const SparseSums& by, int runs, int rows, std::int64_t count) {
    std::vector<float> sums = before;
    by.weights[runs - 1]({.entries = {values.data(), places.data(), count},
                          .weights = from.data(),
                          .weights_pitch = kPitch,
                          .to = sums.data(),
                          .pitch = kPitch,
                          .rows = rows});
    return sums;
  };
  for (int runs = 1; runs <= kTile; ++runs)
    for (int rows = 1; rows <= kTop; ++rows)
      for (const std::int64_t count : {0, 1, 2, 3, 50}) {
        SCOPED_TRACE(::testing::Message() << runs << " runs, " << rows << " rows, " << count << " entries");
        EXPECT_EQ(patches(kSparseSumsAvx512, runs, rows, count), patches(kSparseSums, runs, rows, count));
        const std::vector<float> sums = weights(kSparseSums, runs, rows, count);
        EXPECT_EQ(weights(kSparseSumsAvx512, runs, rows, count), sums);
        EXPECT_EQ(sums == before, count == 0);
      }
}
#endif

TEST(Conv2dPool, other_dtypes_run_the_operations) {
  for (const DType dtype : {kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = make_input({2, 2, 7, 8}, 1, dtype), w = make_input({3, 2, 3, 3}, 2, dtype);
    const Tensor y = block(x, w);
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(y.to_vector<double>(), relu(max_pool2d(conv2d(x, w), 2)).to_vector<double>());
  }
}

// Half types are computed in float32, zeros passed over there, and rounded once.
TEST(Conv2dPool, half_types_have_the_gradients_of_float32_rounded) {
  for (const DType dtype : {kBFloat16, kFloat16}) {
    const auto gradients = [&](DType computed) {
      const auto leaf = [&](const Shape& sizes, std::uint32_t seed) {
        return make_input(sizes, seed, kFloat32).to(dtype).to(computed).requires_grad_();
      };
      const Tensor x = leaf({3, 16, 12, 12}, 1), weight = leaf({16, 16, 3, 3}, 2), bias = leaf({16}, 3);
      const Tensor slope = leaf({3, 16, 5, 5}, 4).detach();
      const Tensor pooled = zeros({3, 16, 10, 10}, {.dtype = computed});
      pooled.slice(2, 0, 10, 2).slice(3, 1, 10, 2).copy_(slope);
      conv2d(x, weight, bias).backward(pooled);
      std::vector<std::vector<float>> found;
      for (const Tensor* each : {&x, &weight, &bias}) found.push_back(each->grad().to(dtype).to_vector<float>());
      return found;
    };
    EXPECT_EQ(gradients(dtype), gradients(kFloat32)) << name(dtype);
  }
}

TEST(Conv2dPool, gradients_equal_central_differences) {
  const Tensor x = make_leaf({2, 2, 6, 7}, 1), w = make_leaf({3, 2, 3, 2}, 2), b = make_leaf({3}, 3);
  gradcheck([](const std::vector<Tensor>& in) { return block(in[0], in[1], in[2], {.padding = 1}); }, {x, w, b});
}

TEST(Conv2dPool, strided_and_empty_inputs) {
  const Tensor x = make_input({2, 3, 8, 8}, 1, kFloat32), w = make_input({4, 3, 3, 3}, 2, kFloat32);
  expect_close(block(make_strided(x), make_strided(w)), block(x, w));
  EXPECT_EQ(block(empty({0, 3, 8, 8}), w).sizes(), Shape({0, 4, 3, 3}));
}

// relu hides a minus, not a NaN.
TEST(Conv2dPool, nan_passes) {
  const Tensor x = ones({1, 1, 4, 4}), w = full({1, 1, 1, 1}, -1.0);
  EXPECT_EQ(block(x, w).to_vector<float>(), (std::vector<float>{0, 0, 0, 0}));
  x.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> y = block(x, w).to_vector<float>();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0.0f);
}

TEST(Conv2dPool, a_frozen_weight_leaves_the_bias_its_gradient) {
  const Tensor x = make_input({2, 3, 8, 8}, 1, kFloat32), w = make_input({4, 3, 3, 3}, 2, kFloat32);
  const Tensor b = make_leaf({4}, 3, kFloat32);
  block(x, w, b).sum().backward();
  set_reference_kernels(true);
  const Tensor expected = make_leaf({4}, 3, kFloat32);
  block(x, w, expected).sum().backward();
  set_reference_kernels(false);
  EXPECT_FALSE(w.grad().defined());
  expect_close(b.grad(), expected.grad());
}

TEST(Conv2dPool, a_changed_operand_is_noticed) {
  const Tensor x = make_input({2, 3, 8, 8}, 1, kFloat32), w = make_leaf({4, 3, 3, 3}, 2, kFloat32);
  const Tensor y = block(x, w).sum();
  x.fill_(0.0);
  const std::string message = testing::error_of([&] { y.backward(); });
  EXPECT_NE(message.find("[Conv2dBackward]"), std::string::npos) << message;
}

TEST(Conv2dPool, errors_are_those_of_its_parts) {
  const Tensor x = ones({1, 4, 5, 5}), w = ones({2, 4, 3, 3});
  const auto message = [](const Tensor& x, const Tensor& w) { return testing::error_of([&] { block(x, w); }); };
  EXPECT_NE(message(ones({5, 5}), w).find("[conv2d]"), std::string::npos);
  EXPECT_NE(message(x, ones({2, 4, 5, 5})).find("[max_pool2d]"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
