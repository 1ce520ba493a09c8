#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/core/cuda/device.h"
#include "lockstep/core/device.h"

namespace lockstep::testing {

/// Where tests that are written for any device put their tensors: LOCKSTEP_TEST_DEVICE, else the CPU.
inline Device test_device() {
  const char* text = std::getenv("LOCKSTEP_TEST_DEVICE");
  return text ? Device(text) : Device();
}

}  // namespace lockstep::testing

/// The test is reported as skipped, with the reason, where its device is not.
#define LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE()                                                \
  do {                                                                                     \
    if (::lockstep::testing::test_device().is_cuda() && !::lockstep::cuda::is_available()) \
      GTEST_SKIP() << "needs a CUDA device: " << ::lockstep::cuda::why_unavailable();      \
  } while (false)
