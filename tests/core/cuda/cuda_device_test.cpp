#include <gtest/gtest.h>

#include "lockstep/core/cuda/device.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

TEST(CudaDevice, CountsWithoutADriverToo) {
  const int count = cuda::device_count();
  EXPECT_GE(count, 0);
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

}  // namespace
}  // namespace lockstep
