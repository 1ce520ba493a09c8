#include "lockstep/nn/optim/clip_grad.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/core/thread_pool.h"
#include "tests/support/golden.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;

Tensor with_gradient(const Tensor& grad) {
  const Tensor p = zeros(grad.sizes(), options_of(grad));
  p.set_requires_grad(true);
  p.set_grad(grad);
  return p;
}

double reference_norm(const std::vector<Tensor>& parameters) {
  double sum = 0.0;
  for (const Tensor& p : parameters)
    for (double g : p.grad().to_vector<double>()) sum += g * g;
  return std::sqrt(sum);
}

TEST(ClipGrad, ScalesToTheNorm) {
  const std::vector<Tensor> parameters{with_gradient(tensor<float>({3, 0})), with_gradient(tensor<float>({4})),
                                       make_leaf({2})};
  EXPECT_DOUBLE_EQ(grad_norm(parameters), 5.0);
  EXPECT_DOUBLE_EQ(clip_grad_norm_(parameters, 1.0), 5.0);
  EXPECT_NEAR(grad_norm(parameters), 1.0, 1e-6);
  EXPECT_NEAR(parameters[0].grad().to_vector<double>()[0], 0.6, 1e-6);
  EXPECT_FALSE(parameters[2].grad().defined());
}

TEST(ClipGrad, LeavesShortGradientsAlone) {
  const std::vector<Tensor> parameters{with_gradient(tensor<float>({3, 4}))};
  EXPECT_DOUBLE_EQ(clip_grad_norm_(parameters, 100.0), 5.0);
  EXPECT_EQ(parameters[0].grad().to_vector<double>(), (std::vector<double>{3, 4}));
  EXPECT_EQ(clip_grad_norm_({}, 1.0), 0.0);
}

TEST(ClipGrad, MatchesPyTorch) {
  for (const auto& [name, limit] : {std::pair{"clip", 0.5}, std::pair{"clip_not_needed", 50.0}}) {
    const GoldenFile& golden = GoldenFile::open("optim");
    const std::vector<Tensor> parameters{with_gradient(copy_contiguous(golden.get(name, "grad.0"))),
                                         with_gradient(copy_contiguous(golden.get(name, "grad.1")))};
    EXPECT_NEAR(clip_grad_norm_(parameters, limit), golden.get(name, "norm").item(), 1e-12);
    expect_close(parameters[0].grad(), golden.get(name, "after.0"), 1e-12);
    expect_close(parameters[1].grad(), golden.get(name, "after.1"), 1e-12);
  }
}

TEST(ClipGrad, TakesEveryDtypeAndLayout) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const std::vector<Tensor> parameters{with_gradient(make_input({50, 7}, 1, dtype)),
                                         with_gradient(make_strided(make_input({5, 3}, 2, dtype)))};
    const double norm = reference_norm(parameters);
    EXPECT_NEAR(clip_grad_norm_(parameters, 0.5), norm, 1e-9 * norm) << name(dtype);
    EXPECT_NEAR(reference_norm(parameters), 0.5, element_size(dtype) == 2 ? 5e-3 : 1e-5) << name(dtype);
  }
}

TEST(ClipGrad, NormDoesNotDependOnThreadsOrLayout) {
  const Tensor grad = make_input({300, 501}, 1, kFloat32);
  const std::vector<Tensor> dense{with_gradient(grad)};
  const std::vector<Tensor> strided{with_gradient(make_strided(grad))};
  const int threads = num_threads();
  set_num_threads(1);
  const double one = grad_norm(dense);
  set_num_threads(2);
  EXPECT_EQ(grad_norm(dense), one);
  EXPECT_EQ(grad_norm(strided), one);
  set_num_threads(threads);
  EXPECT_NEAR(one, reference_norm(dense), 1e-9 * one);
}

TEST(ClipGrad, KeepsTheGradientsMemory) {
  const Tensor bucket = full({4}, 3.0);
  const Tensor p = zeros({2});
  p.set_requires_grad(true);
  p.set_grad(bucket.as_strided({2}, {1}, 1));
  clip_grad_value_({p}, 2.0);
  EXPECT_EQ(bucket.to_vector<double>(), (std::vector<double>{3, 2, 2, 3}));
}

TEST(ClipGrad, ClampsValues) {
  const std::vector<Tensor> parameters{with_gradient(tensor<double>({-3, -0.5, 0, 0.25, 7}))};
  clip_grad_value_(parameters, 0.5);
  EXPECT_EQ(parameters[0].grad().to_vector<double>(), (std::vector<double>{-0.5, -0.5, 0, 0.25, 0.5}));
}

// The gradient of a sum is one number that is seen as many.
TEST(ClipGrad, ExpandedGradientsAreScaledOnce) {
  const Tensor w = ones({3}).requires_grad_();
  w.set_grad(tensor<float>({1}).expand({3}));
  EXPECT_NEAR(clip_grad_norm_({w}, 0.1), std::sqrt(3.0), 1e-6);
  for (const double value : w.grad().to_vector<double>()) EXPECT_NEAR(value, 0.1 / std::sqrt(3.0), 1e-6);
  w.set_grad(tensor<float>({2}).expand({3}));
  clip_grad_value_({w}, 0.5);
  EXPECT_EQ(w.grad().to_vector<double>(), std::vector<double>(3, 0.5));
}

TEST(ClipGrad, NonFiniteNorms) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Tensor> parameters{with_gradient(tensor<float>({infinity, 1}))};
  EXPECT_NE(error_of([&] { clip_grad_norm_(parameters, 1.0, true); }).find("norm of the gradients is inf"),
            std::string::npos);
  EXPECT_EQ(parameters[0].grad().to_vector<double>()[1], 1.0);
  EXPECT_EQ(clip_grad_norm_(parameters, 1.0), infinity);
  EXPECT_TRUE(std::isnan(parameters[0].grad().to_vector<double>()[0]));
  EXPECT_NE(error_of([&] { clip_grad_norm_(parameters, -1.0); }).find("max_norm >= 0"), std::string::npos);
  EXPECT_NE(error_of([&] { clip_grad_value_(parameters, -1.0); }).find("limit >= 0"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::optim
