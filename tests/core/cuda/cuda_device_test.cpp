#include <gtest/gtest.h>

#include <string>

#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

TEST(CudaDevice, CountsWithoutADriverToo) {
  const int count = cuda::device_count();
  EXPECT_EQ(cuda::is_available(), count > 0);
  EXPECT_EQ(cuda::why_unavailable().empty(), count > 0);
  EXPECT_TRUE(cuda::is_built() || count == 0);
}

TEST(CudaDevice, SaysWhyADeviceCannotBeUsed) {
  const int beyond = cuda::device_count();
  for (const int index : {beyond, -1}) {
    try {
      cuda::device_name(index);
      ADD_FAILURE() << "cuda:" << index << " has a name";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("cuda:" + std::to_string(index)), std::string::npos) << message;
      EXPECT_NE(message.find(cuda::why_unavailable()), std::string::npos) << message;
    }
  }
}

// What ranks in lockstep mode must have in common.
TEST(CudaDevice, ItsArithmeticIsThatOfModelDriverAndSettings) {
  if (!cuda::is_available()) GTEST_SKIP() << cuda::why_unavailable();
  const bool tf32 = cuda::allow_tf32();
  cuda::set_allow_tf32(false);
  const std::string exact = cuda::describe_arithmetic(0);
  EXPECT_TRUE(exact.starts_with(cuda::device_name(0) + " (")) << exact;
  for (const char* part : {"), driver ", ", runtime ", ", TF32 off"})
    EXPECT_NE(exact.find(part), std::string::npos) << exact;
  cuda::set_allow_tf32(true);
  EXPECT_NE(cuda::describe_arithmetic(0).find(", TF32 on"), std::string::npos);
  cuda::set_allow_tf32(tf32);
}

}  // namespace
}  // namespace lockstep
