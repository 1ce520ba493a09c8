#pragma once

// Ranks that are threads, each on a CUDA device of its own.

#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/distributed/nccl/nccl.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "tests/distributed/ranks.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {

/// Runs body(group, device) on `world_size` ranks.
inline void run_cuda_ranks(int world_size, const std::function<void(ProcessGroup&, Device)>& body,
                           Milliseconds timeout = Milliseconds(30'000)) {
  auto store = std::make_shared<distributed::HashStore>();
  run_ranks(
      world_size, Link::shm,
      [&](ProcessGroup& group) {
        const Device device{kCUDA, group.rank()};
        // A stream of its own: threads that shared the default stream would wait for each other.
        const cuda::StreamGuard stream(cuda::Stream::from_pool(device.index));
        distributed::nccl::add_executor(group, std::make_shared<distributed::PrefixStore>("nccl", store), device);
        body(group, device);
      },
      timeout);
}

}  // namespace lockstep::testing

/// The test is skipped where there are fewer CUDA devices.
#define LOCKSTEP_SKIP_WITHOUT_DEVICES(count)                                                  \
  do {                                                                                        \
    if (!::lockstep::distributed::nccl::why_unavailable().empty())                            \
      GTEST_SKIP() << "needs NCCL: " << ::lockstep::distributed::nccl::why_unavailable();     \
    if (::lockstep::cuda::device_count() < (count))                                           \
      GTEST_SKIP() << "needs " << (count) << " CUDA devices, found " << cuda::device_count(); \
  } while (false)
