#include "lockstep/core/device.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;

TEST(Device, ParsesAndPrints) {
  EXPECT_EQ(Device("cpu"), Device(kCPU, 0));
  EXPECT_EQ(Device("cpu:3"), Device(kCPU, 3));
  EXPECT_EQ(Device("cuda"), Device(kCUDA, 0));
  EXPECT_EQ(Device("cuda:12"), Device(kCUDA, 12));
  EXPECT_EQ(to_string(Device("cuda:12")), "cuda:12");
  EXPECT_EQ(to_string(Device()), "cpu:0");
  EXPECT_NE(Device("cpu:0"), Device("cuda:0"));
}

TEST(Device, AnythingElseIsAnErrorThatQuotesIt) {
  for (const char* text :
       {"", "gpu", "cpu:", "cpu:-1", "cpu:1x", "cpu: 1", "cuda:99999999999", "CPU", ":0", "cpu:0:0"}) {
    const std::string message = error_of([&] { Device device{std::string_view(text)}; });
    EXPECT_EQ(message, "device '" + std::string(text) + "' is not understood; expected cpu, cuda, cpu:N or cuda:N");
  }
}

TEST(Device, LogicalDevicesKeepTheirTensors) {
  const Tensor x = tensor<float>({1, 2, 3}, Device(kCPU, 2));
  EXPECT_EQ(x.device(), Device(kCPU, 2));
  const Tensor y = move_values(x, Device(kCPU, 1));
  EXPECT_EQ(y.device(), Device(kCPU, 1));
  EXPECT_NE(y.raw_data(), x.raw_data());
  testing::expect_close(y, x, 0, 0);
  EXPECT_EQ(empty_like(y).device(), Device(kCPU, 1));
  EXPECT_TRUE(move_values(y, Device(kCPU, 1)).is_same(y));
}

}  // namespace
}  // namespace lockstep
