#include "lockstep/autograd/ops/softmax/softmax.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

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

OpCase softmax_case(const Shape& sizes, int dim, bool log) {
  return {.name = "",
          .inputs = [=] { return TensorList{make_leaf(sizes, 1, kFloat64, -3, 3)}; },
          .run = [=](const TensorList& in) { return TensorList{run(in[0], dim, log)}; },
          .expected = [=](const TensorList& in) { return TensorList{plain_softmax(in[0], dim, log)}; }};
}

TEST_P(Softmax, ValuesAndGradients) {
  for (const bool log : {false, true}) check_op(softmax_case(GetParam().sizes, GetParam().dim, log));
}

TEST(SoftmaxThreads, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Shape& sizes : {Shape{3000, 10}, Shape{40, 1000}, Shape{6, 20, 500}})
    for (const bool log : {false, true}) check_threads(softmax_case(sizes, 1, log));
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

TEST(SoftmaxValues, ADtypeIsCastToFirst) {
  const Tensor x = make_leaf({3, 4}, 1, kFloat32);
  expect_close(softmax(x, 1, kFloat64), softmax(cast_values(x, kFloat64), 1), 0, 0);
  x.log_softmax(0, kFloat64).backward(ones({3, 4}, {.dtype = kFloat64}));
  EXPECT_EQ(x.grad().dtype(), kFloat32);
  EXPECT_EQ(softmax(zeros({2}, {.dtype = kInt64}), 0, kFloat16).to_vector<double>(), (std::vector<double>{0.5, 0.5}));
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
}  // namespace lockstep::testing
