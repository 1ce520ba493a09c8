#include "lockstep/autograd/ops/softmax/softmax.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

/// Plain double loops; works on any shape.
Tensor plain_softmax(const Tensor& input, int dim, bool log) {
  const Tensor x = copy_contiguous(cast_values(input, kFloat64));
  const Tensor out = empty_like(x);
  std::int64_t inner = 1;
  for (int d = dim + 1; d < x.dim(); ++d) inner *= x.sizes()[d];
  const std::int64_t length = x.dim() ? x.sizes()[dim] : 1;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::int64_t first = i / (inner * length) * inner * length + i % inner;
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t k = 0; k < length; ++k) top = std::max(top, x.data<double>()[first + k * inner]);
    for (std::int64_t k = 0; k < length; ++k) sum += std::exp(x.data<double>()[first + k * inner] - top);
    const double shifted = x.data<double>()[i] - top;
    out.data<double>()[i] = log ? shifted - std::log(sum) : std::exp(shifted) / sum;
  }
  return out;
}

Tensor run(const Tensor& x, int dim, bool log) {
  return log ? log_softmax(x, dim) : softmax(x, dim);
}

struct Case {
  Shape sizes;
  int dim;
};

class Softmax : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, Softmax,
                         ::testing::Values(Case{{}, 0}, Case{{1}, 0}, Case{{7}, 0}, Case{{64, 10}, 1},
                                           Case{{64, 10}, 0}, Case{{3, 1}, 1}, Case{{5, 16}, 1}, Case{{5, 33}, 1},
                                           Case{{2, 3, 4}, 1}, Case{{3, 5, 70}, 1}, Case{{3, 1500}, 1},
                                           Case{{2, 3, 4, 5}, 3}, Case{{0, 4}, 1}, Case{{4, 0}, 1}, Case{{4, 0}, 0}));

TEST_P(Softmax, MatchesPlainLoops) {
  const auto [sizes, dim] = GetParam();
  for (const bool log : {false, true})
    for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
      const Tensor x = make_input(sizes, 1, dtype, -8, 8);
      const double tolerance = dtype == kFloat64 ? 1e-14 : dtype == kFloat32 ? 2e-6 : dtype == kFloat16 ? 1e-3 : 8e-3;
      const Tensor y = run(x, dim, log);
      EXPECT_EQ(y.dtype(), dtype);
      expect_close(y, plain_softmax(x, dim, log), tolerance, tolerance);
      expect_close(run(make_strided(x), dim, log), y, 0, 0);
    }
}

TEST_P(Softmax, GradientMatchesCentralDifferences) {
  const auto [sizes, dim] = GetParam();
  if (sizes.numel() > 700) return;  // covered by the smaller shapes of the same path
  for (const bool log : {false, true})
    gradcheck([&](const auto& in) { return run(in[0], dim, log); }, {make_leaf(sizes, 2, kFloat64, -2, 2)});
}

TEST_P(Softmax, GradientIsTheSameInEveryDtype) {
  const auto [sizes, dim] = GetParam();
  for (const bool log : {false, true}) {
    const Tensor upstream = make_input(sizes, 5);
    const Tensor exact = make_leaf(sizes, 3, kFloat64, -3, 3);
    run(exact, dim, log).backward(upstream);
    for (const DType dtype : {kFloat32, kFloat16, kBFloat16}) {
      const Tensor x = make_leaf(sizes, 3, dtype, -3, 3);
      run(x, dim, log).backward(make_strided(cast_values(upstream, dtype)));
      const double tolerance = dtype == kFloat32 ? 2e-5 : dtype == kFloat16 ? 3e-2 : 2e-1;
      expect_close(x.grad(), exact.grad(), tolerance, tolerance);
    }
  }
}

TEST(SoftmaxValues, LargeLogitsDoNotOverflow) {
  const Tensor x = tensor<float>({1e30f, 1e30f, -1e30f, 0.0f});
  expect_close(softmax(x, 0), tensor<double>({0.5, 0.5, 0, 0}));
  expect_close(log_softmax(tensor<float>({1000.f, 0.f}), 0), tensor<double>({0, -1000}));
}

TEST(SoftmaxValues, InfinitiesAndNanFollowPyTorch) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    std::vector<float> x;
    std::vector<double> y;
  } cases[] = {
      {{0.f, -kInf, 0.f}, {0.5, 0, 0.5}},   {{-kInf, -kInf}, {kNan, kNan}},
      {{kInf, 0.f}, {kNan, kNan}},          {{0.f, std::nanf(""), 1.f}, {kNan, kNan, kNan}},
      {{std::nanf(""), 0.f}, {kNan, kNan}},
  };
  for (const auto& c : cases) expect_close(softmax(tensor(c.x), 0), tensor(c.y));
}

TEST(SoftmaxThreads, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = num_threads();
  for (const Shape& sizes : {Shape{3000, 10}, Shape{40, 1000}, Shape{6, 20, 500}})
    for (const bool log : {false, true}) {
      std::vector<double> results[2], grads[2];
      for (int t = 0; t < 2; ++t) {
        set_num_threads(t + 1);
        const Tensor x = make_leaf(sizes, 4, kFloat32, -5, 5);
        const Tensor y = run(x, 1, log);
        y.backward(make_input(sizes, 6, kFloat32));
        results[t] = y.to_vector<double>();
        grads[t] = x.grad().to_vector<double>();
      }
      EXPECT_EQ(results[0], results[1]);
      EXPECT_EQ(grads[0], grads[1]);
    }
  set_num_threads(before);
}

TEST(SoftmaxErrors, NameTheOpAndTheProblem) {
  EXPECT_EQ(error_of([] { softmax(zeros({2}, {.dtype = kInt64}), 0); }),
            "[softmax] expected a floating-point input, found int64; cast it with to(kFloat32)");
  EXPECT_NE(error_of([] { log_softmax(zeros({2, 3}), 2); }).find("[log_softmax]"), std::string::npos);
  EXPECT_NE(error_of([] { softmax(Tensor(), 0); }).find("undefined"), std::string::npos);
}

TEST(SoftmaxGraph, ResultChangedInPlaceIsAnError) {
  const Tensor x = make_leaf({2, 3});
  const Tensor y = softmax(x, 1);
  y.storage()->bump_version();
  EXPECT_NE(error_of([&] { y.backward(zeros_like(y)); }).find("[SoftmaxBackward]"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
