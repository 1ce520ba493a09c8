#include "lockstep/autograd/ops/mse_loss/mse_loss.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

TEST(MseLoss, GradientMatchesCentralDifferences) {
  for (const Reduction reduction : kReductions)
    for (const Shape& sizes : {Shape{}, Shape{5}, Shape{2, 3, 4}})
      gradcheck([&](const auto& in) { return mse_loss(in[0], in[1], {.reduction = reduction}); },
                {make_leaf(sizes, 1), make_leaf(sizes, 2)});
}

TEST(MseLoss, EveryDtypeAndStridedInputs) {
  for (const Reduction reduction : kReductions) {
    const Tensor x = make_leaf({5, 7}, 1), y = make_input({5, 7}, 2);
    const Tensor exact = mse_loss(x, y, {.reduction = reduction});
    exact.backward(make_input(exact.sizes(), 3));
    for (const DType dtype : {kFloat32, kFloat16, kBFloat16}) {
      const double tolerance = dtype == kFloat32 ? 1e-5 : dtype == kFloat16 ? 4e-3 : 4e-2;
      const Tensor lx = make_leaf({5, 7}, 1, dtype), ly = make_input({5, 7}, 2, dtype);
      const Tensor loss = mse_loss(lx, ly, {.reduction = reduction});
      EXPECT_EQ(loss.dtype(), dtype);
      expect_close(loss, exact, tolerance, tolerance);
      loss.backward(make_input(exact.sizes(), 3, dtype));
      expect_close(lx.grad(), x.grad(), tolerance, tolerance);
      expect_close(mse_loss(make_strided(lx), make_strided(ly), {.reduction = reduction}), loss, 0, 0);
    }
  }
}

TEST(MseLoss, EmptyInputs) {
  const Tensor x = make_leaf({0, 3}), y = make_input({0, 3});
  EXPECT_TRUE(std::isnan(mse_loss(x, y).item()));
  EXPECT_EQ(mse_loss(x, y, {.reduction = Reduction::sum}).item(), 0.0);
  mse_loss(x, y).backward();
  EXPECT_EQ(x.grad().numel(), 0);
}

TEST(MseLoss, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = num_threads();
  double losses[2];
  for (int t = 0; t < 2; ++t) {
    set_num_threads(t + 1);
    losses[t] = mse_loss(make_input({100003}, 1, kFloat32), make_input({100003}, 2, kFloat32)).item();
  }
  set_num_threads(before);
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(MseLoss, ErrorsNameTheProblem) {
  const Tensor x = make_input({4, 1});
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] { mse_loss(x, make_input({4})); },
       "[mse_loss] expected a target of the input's shape [4, 1], found [4]; reshape or expand it"},
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
}  // namespace lockstep
