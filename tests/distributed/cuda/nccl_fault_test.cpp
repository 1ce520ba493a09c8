// Faults that a communicator reports by itself, or does not; of the stand-in for NCCL on the emulated device.

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <barrier>
#include <optional>

#include "lockstep/core/cuda/graph.h"
#include "lockstep/core/factories.h"
#include "lockstep/emulated/core/faults.h"
#include "tests/distributed/cuda/cuda_ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::run_cuda_ranks;

/// Within ten seconds.
bool fails(const ProcessGroup& group) {
  for (int i = 0; i < 5000 && !group.failed(); ++i) std::this_thread::sleep_for(Milliseconds(2));
  return group.failed();
}

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

TEST(NcclFault, ARankMissingFromTheFirstCollectiveIsNamed) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  std::string said;
  bool told = false;
  run_cuda_ranks(
      2,
      [&](ProcessGroup& group, Device device) {
        const Tensor x = full({64}, 1.0, {.device = device});
        if (group.rank() == 1) {
          told = fails(group);
          return;
        }
        try {
          group.all_reduce(x)->wait();
        } catch (const ProcessGroupError& e) {
          said = e.what();
        }
      },
      Milliseconds(1000));
  EXPECT_NE(said.find("all_reduce #0"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
  EXPECT_TRUE(told);
}

// An illegal access, say: the call that started it has returned, and the device answers nothing from then on.
TEST(NcclFault, ADeviceThatFailsUnderACollectiveEndsAllRanks) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> messages(2);
  run_cuda_ranks(
      2,
      [&](ProcessGroup& group, Device device) {
        const Tensor x = full({64}, 1.0, {.device = device});
        group.all_reduce(x)->wait();
        group.barrier()->wait();
        if (group.rank() == 1) cuda::emulated::faults::fail_work(device.index, 0, cudaErrorIllegalAddress);
        messages[static_cast<std::size_t>(group.rank())] = testing::error_of([&] {
          for (int i = 0; i < 100; ++i) {
            group.all_reduce(x);
            group.barrier()->wait();
          }
        });
        EXPECT_TRUE(fails(group));
      },
      Milliseconds(20'000));
  cuda::emulated::faults::fail_device(cudaSuccess);
  EXPECT_NE(messages[0].find("rank 1"), std::string::npos) << messages[0];
  EXPECT_NE(messages[1].find("illegal memory access"), std::string::npos) << messages[1];
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // long before the deadline
}

TEST(NcclRace, ACommunicatorIsCalledByOneThreadAtATime) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  const int before = lockstep_emulated_nccl_races();
  run_cuda_ranks(2, [&](ProcessGroup& group, Device device) {
    const Tensor x = full({64}, 1.0, {.device = device});
    for (int i = 0; i < 300; ++i) group.all_reduce(x);  // each wakes the watchdog, which asks NCCL about errors
    group.barrier()->wait();
  });
  EXPECT_EQ(lockstep_emulated_nccl_races(), before);
}

TEST(NcclSchedule, ResultsDoNotDependOnWhoIsQuick) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(3);
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    lockstep_emulate_nccl_schedule(seed);
    run_cuda_ranks(3, [&](ProcessGroup& group, Device device) {
      const int rank = group.rank(), next = (rank + 1) % 3, last = (rank + 2) % 3;
      const Tensor x = full({64}, rank + 1.0, {.device = device}), y = full({64}, 0.0, {.device = device});
      group.all_reduce(x);  // 6
      const WorkPtr sent = group.send(x, next);
      group.recv(y, last)->wait();
      sent->wait();
      group.all_reduce(y)->wait();  // 18
      group.broadcast(x, static_cast<int>(seed % 3));
      group.all_reduce(x, ReduceOp::max)->wait();
      group.barrier()->wait();
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>(64, 6.0f));
      EXPECT_EQ(y.to_vector<float>(), std::vector<float>(64, 18.0f));
    });
  }
}

// Whoever aborts, and whenever: the others' next waits say so, long before the deadline.
TEST(NcclSchedule, AnAbortAtAnyTimeEndsAllRanks) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(3);
  const auto start = std::chrono::steady_clock::now();
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    lockstep_emulate_nccl_schedule(seed);
    run_cuda_ranks(3, [&](ProcessGroup& group, Device device) {
      const Tensor x = full({64}, 1.0, {.device = device});
      const bool aborts = group.rank() == static_cast<int>(seed % 3);
      const std::string said = testing::error_of([&] {
        for (unsigned i = 0; i < 200; ++i) {
          if (aborts && i == seed) group.abort("the test says so");
          group.all_reduce(x);
          group.barrier()->wait();
        }
      });
      EXPECT_NE(said.find("the test says so"), std::string::npos) << said;
    });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

/// Two ranks, each with a graph that adds up over both; they live as long as this.
struct GraphsOfTwoRanks {
  std::optional<cuda::Graph> graphs[2];
  Tensor values[2];
  std::barrier<> checked{2};

  /// Captures and replays it once, then calls body(group, replay).
  void run(Milliseconds timeout, const std::function<void(ProcessGroup&, const std::function<WorkPtr()>&)>& body) {
    run_cuda_ranks(
        2,
        [&](ProcessGroup& group, Device device) {
          const auto rank = static_cast<std::size_t>(group.rank());
          const cuda::Stream stream = cuda::Stream::create(device.index);
          const cuda::StreamGuard guard(stream);
          Tensor& x = values[rank];
          x = full({64}, 1.0, {.device = device});
          group.all_reduce(x)->wait();
          stream.synchronize();
          graphs[rank] = cuda::Graph::capture(stream, [&] { group.all_reduce(x)->wait(); });
          const auto replay = [&] { return group.watch("a CUDA graph", [&] { graphs[rank]->launch(); }); };
          replay();
          stream.synchronize();
          EXPECT_EQ(x.to_vector<float>().front(), 4.0f);
          checked.arrive_and_wait();  // an abort in the body must not meet the other's replay
          body(group, replay);
        },
        timeout);
  }
};

TEST(NcclGraphs, AReplayThatAPeerDoesNotJoinMeetsItsDeadline) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  GraphsOfTwoRanks two;
  std::string said;
  two.run(Milliseconds(1000), [&](ProcessGroup& group, const auto& replay) {
    if (group.rank() == 0) replay();
    EXPECT_TRUE(fails(group));
    if (group.rank() == 0) said = testing::error_of([&] { group.barrier(); });
  });
  EXPECT_NE(said.find("a CUDA graph"), std::string::npos) << said;
}

TEST(NcclGraphs, AfterAFailureNothingIsReplayedThoughGraphsLive) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  GraphsOfTwoRanks two;
  const auto start = std::chrono::steady_clock::now();
  two.run(Milliseconds(1000), [&](ProcessGroup& group, const auto& replay) {
    if (group.rank() == 1) group.abort("the test says so");
    EXPECT_TRUE(fails(group));
    const std::string said = testing::error_of([&] { replay(); });
    EXPECT_NE(said.find("the test says so"), std::string::npos) << said;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

TEST(NcclGraphs, AGroupMayGoBeforeItsGraphs) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  GraphsOfTwoRanks two;
  const auto start = std::chrono::steady_clock::now();
  two.run(Milliseconds(1000), [](ProcessGroup&, const auto&) {});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

TEST(NcclGraphs, ARankCapturesWhileTheOtherDoesNot) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  run_cuda_ranks(
      2,
      [&](ProcessGroup& group, Device device) {
        const cuda::Stream stream = cuda::Stream::create(device.index);
        const cuda::StreamGuard guard(stream);
        const Tensor x = full({64}, 1.0, {.device = device});
        group.all_reduce(x)->wait();
        stream.synchronize();
        // As with unequal parts of a batch, of which one rank has had the size before.
        if (group.rank() == 0) {
          const cuda::Graph graph = cuda::Graph::capture(stream, [&] { group.all_reduce(x)->wait(); });
          group.watch("a CUDA graph", [&] { graph.launch(); });
          stream.synchronize();
        } else {
          group.all_reduce(x)->wait();
        }
        EXPECT_EQ(x.to_vector<float>().front(), 4.0f);
      },
      Milliseconds(3000));
}

void first_kernel(float* out) {
  out[threadIdx.x] = 1.0f;
}
void second_kernel(float* out) {
  out[threadIdx.x] = 2.0f;
}

// Rank 0 launches a kernel for the first time while its collective waits for rank 1, which comes when it has launched
// another one for the first time: each needs what CUDA gives one at a time.
TEST(NcclModules, RanksThatAreThreadsHaveTheirKernelsLoaded) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  run_cuda_ranks(
      2,
      [&](ProcessGroup& group, Device device) {
        const cuda::DeviceGuard on(device.index);
        CUstream_st* const stream = cuda::Stream::current(device.index).handle();
        const Tensor x = full({64}, 1.0, {.device = device}), y = full({64}, 0.0, {.device = device});
        group.all_reduce(x)->wait();
        group.barrier()->wait();
        auto* const out = static_cast<float*>(y.raw_data());
        if (group.rank() == 0) {
          group.all_reduce(x);
          cuda::emulated::enqueue_kernel(first_kernel, 1, 64, stream, out);
        } else {
          std::this_thread::sleep_for(Milliseconds(100));
          cuda::emulated::enqueue_kernel(second_kernel, 1, 64, stream, out);
          group.all_reduce(x)->wait();
        }
        group.barrier()->wait();
        EXPECT_EQ(x.to_vector<float>().front(), 4.0f);
        EXPECT_EQ(y.to_vector<float>().front(), group.rank() == 0 ? 1.0f : 2.0f);
      },
      Milliseconds(3000));
}

TEST(NcclAverage, OfHalfTypesDoesNotOverflow) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(4);
  run_cuda_ranks(4, [&](ProcessGroup& group, Device device) {
    const Tensor x = full({8}, 30000.0, {.dtype = kFloat16, .device = device});
    group.all_reduce(x, ReduceOp::avg)->wait();
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(8, 30000.0f));
  });
}

}  // namespace
}  // namespace lockstep::distributed
