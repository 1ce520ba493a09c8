#pragma once

// What the tests of Note [Channels last] share.

#include <gtest/gtest.h>

#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/math_mode.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {

/// Of a dtype whose convolutions are computed by tensor cores.
class ChannelsLastTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
    LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
    cuda::set_allow_tf32(GetParam() == kFloat32);
  }
  void TearDown() override { cuda::set_allow_tf32(false); }

  /// The same values on the CPU and on the device.
  static Tensor values(const Shape& sizes, std::uint32_t seed) {
    return cast_values(make_input(sizes, seed, kFloat32), GetParam()).to(test_device());
  }
};

}  // namespace lockstep::testing
