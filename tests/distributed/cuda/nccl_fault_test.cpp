// Faults that a communicator reports by itself, or does not; of the stand-in for NCCL on the emulated device.

#include <gtest/gtest.h>
#include <nccl.h>

#include "lockstep/core/factories.h"
#include "tests/distributed/cuda/cuda_ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::run_cuda_ranks;

/// What both ranks say, in a world of two whose third collective meets the fault. Both must have failed; who did so
/// first names the cause, and the other may have heard of it from there.
std::string messages_with(ncclResult_t error, Milliseconds timeout) {
  std::vector<std::string> messages(2);
  lockstep_emulate_nccl_fault(4, error);  // two ranks, two collectives each before it
  run_cuda_ranks(
      2,
      [&](ProcessGroup& group, Device device) {
        const Tensor x = full({64}, 1.0, {.device = device});
        try {
          for (int i = 0; i < 4; ++i) {
            const WorkPtr work = group.all_reduce(x);
            while (!work->is_completed()) std::this_thread::sleep_for(Milliseconds(2));
            work->wait();
          }
        } catch (const ProcessGroupError& e) {
          messages[static_cast<std::size_t>(group.rank())] = e.what();
        }
      },
      timeout);
  lockstep_emulate_nccl_fault(-1, ncclSuccess);
  for (const std::string& message : messages) EXPECT_FALSE(message.empty());
  return messages[0] + "\n" + messages[1];
}

TEST(NcclFault, AnErrorOfTheCommunicatorEndsTheOperationOnAllRanks) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  const auto start = std::chrono::steady_clock::now();
  const std::string said = messages_with(ncclRemoteError, Milliseconds(20'000));
  EXPECT_NE(said.find("remote process exited"), std::string::npos) << said;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));  // long before the deadline
}

TEST(NcclFault, AKernelThatHangsWithoutAWordMeetsTheDeadline) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  const auto start = std::chrono::steady_clock::now();
  const std::string said = messages_with(ncclSuccess, Milliseconds(1000));
  EXPECT_NE(said.find("all_reduce #2"), std::string::npos) << said;
  EXPECT_NE(said.find("within 1000 ms"), std::string::npos) << said;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(6));
}

}  // namespace
}  // namespace lockstep::distributed
