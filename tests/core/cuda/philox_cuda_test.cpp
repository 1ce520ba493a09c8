#include "lockstep/core/cuda/philox_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {
namespace {

std::vector<float> uniform_on_device(std::int64_t count, float low, float high, philox::Key key) {
  constexpr std::int64_t kGuard = 8;
  std::vector<float> host(static_cast<std::size_t>(count + kGuard), -7.0f);
  float* device = nullptr;
  const std::size_t bytes = host.size() * sizeof(float);
  LOCKSTEP_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&device), bytes));
  LOCKSTEP_CUDA_CHECK(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice));
  philox_uniform(device, count, low, high, key);
  LOCKSTEP_CUDA_CHECK(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
  LOCKSTEP_CUDA_CHECK(cudaFree(device));
  for (std::int64_t i = 0; i < kGuard; ++i) EXPECT_EQ(host[static_cast<std::size_t>(count + i)], -7.0f);
  host.resize(static_cast<std::size_t>(count));
  return host;
}

class PhiloxCuda : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    if (!is_available()) GTEST_SKIP() << why_unavailable();
  }
};

TEST_P(PhiloxCuda, GivesTheBitsOfTheCpu) {
  const philox::Key key{0x243f6a88u, 0x85a308d3u};
  const std::vector<float> values = uniform_on_device(GetParam(), 0.0f, 1.0f, key);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], philox::to_uniform(philox::word_at(key, i))) << "element " << i;
}

TEST_P(PhiloxCuda, ScalesToTheInterval) {
  const philox::Key key{1, 2};
  const std::vector<float> values = uniform_on_device(GetParam(), -2.0f, 3.0f, key);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], std::fma(philox::to_uniform(philox::word_at(key, i)), 5.0f, -2.0f)) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(Counts, PhiloxCuda, ::testing::Values(0, 1, 3, 4, 1023, 1024 * 1024 * 5 + 1));

TEST(CudaCheck, NamesExpressionPlaceAndReason) {
  try {
    LOCKSTEP_CUDA_CHECK(cudaErrorInvalidValue);
    FAIL() << "no exception";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const char* part : {"cudaErrorInvalidValue", "philox_cuda_test.cpp:", "invalid argument"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::cuda
