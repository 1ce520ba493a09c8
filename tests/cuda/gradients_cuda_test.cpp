#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;

class CudaGradients : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
    LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  }

  // More than a launch takes, of several dtypes, one over several chunks, one with gaps, one empty.
  static std::vector<Tensor> parameters(Device device, double size = 1.0) {
    std::vector<Tensor> all;
    for (std::uint32_t i = 0; i < 150; ++i) {
      const DType dtype = i % 3 == 0 ? kFloat64 : i % 10 == 1 ? kBFloat16 : i % 10 == 3 ? kFloat16 : kFloat32;
      const Shape sizes = i == 5 ? Shape{130, 131} : i == 6 ? Shape{0} : Shape{1 + i % 7, 3};
      Tensor grad = move_values(cast_values(make_input(sizes, i + 1, kFloat64, -size, size), dtype), device);
      if (i == 8) grad = make_strided(grad);
      const Tensor p = zeros(sizes, options_of(grad));
      p.set_requires_grad(true);
      if (i != 9) p.set_grad(grad);
      all.push_back(p);
    }
    return all;
  }

  static void expect_same_gradients(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_EQ(a[i].grad().defined(), b[i].grad().defined());
      if (!a[i].grad().defined()) continue;
      const double tolerance = element_size(a[i].dtype()) == 2 ? 1e-2 : a[i].dtype() == kFloat64 ? 1e-14 : 1e-6;
      expect_close(a[i].grad(), b[i].grad(), tolerance, 0.0);
    }
  }
};

TEST_F(CudaGradients, AreClippedLikeTheCpus) {
  for (const double limit : {0.5, 1e6}) {
    const std::vector<Tensor> a = parameters(test_device()), b = parameters(Device());
    const double norm = grad_norm(b);
    EXPECT_NEAR(grad_norm(a), norm, 1e-12 * norm);
    EXPECT_NEAR(clip_grad_norm_(a, limit), norm, 1e-12 * norm);
    clip_grad_norm_(b, limit);
    expect_same_gradients(a, b);
    EXPECT_NEAR(grad_norm(a), std::min(limit, norm), 1e-3 * norm);
  }
}

TEST_F(CudaGradients, AreClampedLikeTheCpus) {
  const std::vector<Tensor> a = parameters(test_device()), b = parameters(Device());
  clip_grad_value_(a, 0.25);
  clip_grad_value_(b, 0.25);
  expect_same_gradients(a, b);
}

TEST_F(CudaGradients, NormsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor p = move_values(tensor<float>({0, 0}), test_device());
  p.set_requires_grad(true);
  p.set_grad(move_values(tensor<float>({infinity, 1}), test_device()));
  EXPECT_NE(error_of([&] { clip_grad_norm_({p}, 1.0, true); }).find("norm of the gradients is inf"), std::string::npos);
  EXPECT_EQ(p.grad().to_vector<double>()[1], 1.0);
  EXPECT_EQ(clip_grad_norm_({p}, 1.0), infinity);
  EXPECT_TRUE(std::isnan(p.grad().to_vector<double>()[0]));
}

TEST_F(CudaGradients, OfTwoDevicesMeetOnTheHost) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "needs two CUDA devices";
  std::vector<Tensor> a = parameters({kCUDA, 0});
  const std::vector<Tensor> second = parameters({kCUDA, 1});
  a.insert(a.end(), second.begin(), second.end());
  std::vector<Tensor> b = parameters(Device());
  const std::vector<Tensor> again = parameters(Device());
  b.insert(b.end(), again.begin(), again.end());
  const double norm = clip_grad_norm_(b, 0.5);
  EXPECT_NEAR(clip_grad_norm_(a, 0.5), norm, 1e-12 * norm);
  expect_same_gradients(a, b);
}

// Clipping waits for nobody: waiting would break the capture.
TEST_F(CudaGradients, AreClippedUnderACapture) {
  const std::vector<Tensor> a = parameters(test_device());
  const int device = test_device().index;
  cuda::Stream::current(device).synchronize();
  const cuda::Stream stream = cuda::Stream::from_pool(device);
  const cuda::StreamGuard guard(stream);
  const cuda::MemoryHold hold(stream);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  clip_grad_norm_(a, 0.5);
  ASSERT_EQ(cudaStreamEndCapture(stream.handle(), &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream.handle()), cudaSuccess);
  const std::vector<Tensor> b = parameters(Device());
  clip_grad_norm_(b, 0.5);
  expect_same_gradients(a, b);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST_F(CudaGradients, TheScalerUnscalesAndSkips) {
  const Tensor p = move_values(tensor<float>({1, 2}), test_device());
  p.set_requires_grad(true);
  SGD optimizer({p}, {.lr = 0.5});
  GradScaler scaler({.init_scale = 1024});
  const auto iterate = [&](float grad) {
    p.set_grad(move_values(tensor<float>({256, grad}), test_device()));
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  };
  EXPECT_TRUE(iterate(256));
  EXPECT_EQ(p.to_vector<float>(), (std::vector<float>{0.875, 1.875}));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    EXPECT_FALSE(iterate(bad));
  EXPECT_EQ(p.to_vector<float>(), (std::vector<float>{0.875, 1.875}));
  EXPECT_EQ(scaler.scale_factor(), 256);
  EXPECT_TRUE(iterate(64));
  EXPECT_EQ(p.to_vector<float>(), (std::vector<float>{0.375, 1.75}));
}

}  // namespace
}  // namespace lockstep::optim
