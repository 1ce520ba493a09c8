#include "lockstep/autograd/ops/bce_with_logits/bce_with_logits.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

constexpr auto bce = binary_cross_entropy_with_logits;

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

TEST(BceWithLogits, GradientMatchesCentralDifferences) {
  for (const Reduction reduction : kReductions)
    for (const bool weighted : {false, true}) {
      BceWithLogitsOptions options{.reduction = reduction};
      if (weighted) {
        options.weight = make_input({3, 1}, 5, kFloat64, 0.5, 2);
        options.pos_weight = make_input({4}, 6, kFloat64, 0.5, 2);
      }
      gradcheck([&](const auto& in) { return bce(in[0], in[1], options); },
                {make_leaf({3, 4}, 1, kFloat64, -3, 3), make_leaf({3, 4}, 2, kFloat64, 0, 1)});
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

TEST(BceWithLogits, EveryDtypeAndStridedInputs) {
  for (const Reduction reduction : kReductions) {
    const Tensor x = make_leaf({5, 7}, 1), y = make_input({5, 7}, 2, kFloat64, 0, 1);
    const Tensor w = make_input({5, 7}, 4, kFloat64, 0, 2), p = make_input({7}, 5, kFloat64, 0, 2);
    const Tensor exact = bce(x, y, {.reduction = reduction, .weight = w, .pos_weight = p});
    exact.backward(make_input(exact.sizes(), 3));
    for (const DType dtype : {kFloat32, kFloat16, kBFloat16}) {
      const double tolerance = dtype == kFloat32 ? 1e-5 : dtype == kFloat16 ? 4e-3 : 4e-2;
      const Tensor lx = make_leaf({5, 7}, 1, dtype), ly = cast_values(y, dtype);
      const BceWithLogitsOptions options{
          .reduction = reduction, .weight = cast_values(w, dtype), .pos_weight = cast_values(p, dtype)};
      const Tensor loss = bce(lx, ly, options);
      EXPECT_EQ(loss.dtype(), dtype);
      expect_close(loss, exact, tolerance, tolerance);
      loss.backward(make_input(exact.sizes(), 3, dtype));
      expect_close(lx.grad(), x.grad(), tolerance, tolerance);
      expect_close(bce(make_strided(lx), make_strided(ly), options), loss, 0, 0);
    }
  }
}

TEST(BceWithLogits, EmptyInputs) {
  const Tensor x = make_leaf({0, 3});
  EXPECT_TRUE(std::isnan(bce(x, make_input({0, 3}), {}).item()));
  EXPECT_EQ(bce(x, make_input({0, 3}), {.reduction = Reduction::sum}).item(), 0.0);
  EXPECT_EQ(bce(x, make_input({0, 3}), {.reduction = Reduction::none}).numel(), 0);
}

TEST(BceWithLogits, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = num_threads();
  double losses[2];
  for (int t = 0; t < 2; ++t) {
    set_num_threads(t + 1);
    losses[t] = bce(make_input({50003}, 1, kFloat32), make_input({50003}, 2, kFloat32, 0, 1), {}).item();
  }
  set_num_threads(before);
  EXPECT_EQ(losses[0], losses[1]);
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
}  // namespace lockstep
