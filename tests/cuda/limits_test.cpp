// The ends of a device's memory, and of 32 bits.

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/allocator.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

TEST(CudaLimits, AFullDeviceIsAnErrorAfterWhichWorkGoesOn) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  std::vector<Tensor> blocks;
  const std::string said = error_of([&] {
    for (;;) blocks.push_back(empty({std::int64_t{1} << 30}, {.dtype = kUInt8, .device = test_device()}));
  });
  EXPECT_NE(said.find("out of memory"), std::string::npos) << said;
  EXPECT_FALSE(blocks.empty());
  blocks.pop_back();
  EXPECT_EQ(ones({1000}, {.device = test_device()}).sum().item<float>(), 1000.0f);
  blocks.clear();
  allocator(kCUDA).empty_cache();
}

TEST(CudaLimits, TensorsMayHaveMoreThan2To31Elements) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const std::int64_t size = (std::int64_t{1} << 31) + 7;
  Tensor x;
  try {
    const Tensor room = empty({std::int64_t{12} << 30}, {.dtype = kUInt8, .device = test_device()});
    x = zeros({size}, {.dtype = kUInt8, .device = test_device()});
  } catch (const Error&) {
    GTEST_SKIP() << "needs 14 GiB of the device's memory";
  }
  x.narrow(0, size - 7, 7).fill_(3.0);
  EXPECT_EQ(x.sum().item<std::int64_t>(), 21);
  EXPECT_EQ(x.argmax().item<std::int64_t>(), size - 7);
  const Tensor half = x.to(kFloat16);
  EXPECT_EQ((half * 2.0).max().item<float>(), 6.0f);
  EXPECT_EQ(half.narrow(0, size - 8, 8).to_vector<float>(), (std::vector<float>{0, 3, 3, 3, 3, 3, 3, 3}));
  allocator(kCUDA).empty_cache();
}

}  // namespace
}  // namespace lockstep::testing
