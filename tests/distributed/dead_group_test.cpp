// What a process group does on every rank once something has gone wrong. Ranks are threads; for processes and signals
// see fault_support.h.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "lockstep/distributed/gloo/gloo.h"
#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using std::chrono::steady_clock;
using testing::Link;

class DeadGroupTest : public ::testing::TestWithParam<Link> {
 protected:
  void SetUp() override {
    if (GetParam() == Link::gloo && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

INSTANTIATE_TEST_SUITE_P(All, DeadGroupTest, ::testing::Values(Link::in_process, Link::gloo, Link::shm),
                         [](const auto& info) { return testing::name_of(info.param); });

TEST_P(DeadGroupTest, RefusesFurtherWorkWithTheReason) {
  const auto messages = testing::errors_of_ranks(2, GetParam(), Milliseconds(600), [](ProcessGroup& group) {
    group.barrier()->wait();
    if (group.rank() == 1) {
      std::this_thread::sleep_for(Milliseconds(2'500));
      EXPECT_NE(testing::error_of([&] { group.all_reduce(ones({2}))->wait(); }).find("rank 0 reported a failure"),
                std::string::npos);
      return;
    }
    const std::string first = testing::error_of([&] { group.all_reduce(ones({2}))->wait(); });
    EXPECT_NE(first.find("timed out waiting for rank 1"), std::string::npos) << first;
    EXPECT_EQ(testing::error_of([&] { group.barrier()->wait(); }), first);
    EXPECT_EQ(group.records().back().state, OperationRecord::State::queued);
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

TEST_P(DeadGroupTest, AbortEndsBlockedOperationsOnAllRanks) {
  const auto start = steady_clock::now();
  const auto messages = testing::errors_of_ranks(3, GetParam(), Milliseconds(10'000), [](ProcessGroup& group) {
    group.barrier()->wait();
    if (group.rank() == 2) {
      std::this_thread::sleep_for(Milliseconds(100));
      group.abort("the user asked for it");
    }
    const WorkPtr work = group.all_reduce(ones({100'000}));
    work->wait();
  });
  EXPECT_LT(steady_clock::now() - start, Milliseconds(10'000)) << "nobody waits for the deadline";
  EXPECT_NE(messages[2].find("aborted on this rank: the user asked for it"), std::string::npos) << messages[2];
  EXPECT_NE(messages[0].find("the user asked for it"), std::string::npos) << messages[0];
  EXPECT_NE(messages[1].find("the user asked for it"), std::string::npos) << messages[1];
}

TEST_P(DeadGroupTest, QueuedOperationsEndWithTheFirstFailure) {
  testing::errors_of_ranks(2, GetParam(), Milliseconds(600), [](ProcessGroup& group) {
    group.barrier()->wait();
    if (group.rank() == 1) return;
    const WorkPtr first = group.all_reduce(ones({3})), second = group.all_reduce(ones({3}));
    const std::string reason = testing::error_of([&] { first->wait(); });
    EXPECT_NE(reason.find("all_reduce #1 (float32 [3], sum)"), std::string::npos) << reason;
    EXPECT_EQ(testing::error_of([&] { second->wait(); }), reason);
    EXPECT_FALSE(second->is_success());
  });
}

TEST(Gloo, AnAddressOfAnotherMachineIsAnError) {
  if (!gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  for (const char* address : {"nosuch0", "192.0.2.77"}) {
    const std::string error = testing::error_of([&] {
      gloo::make_process_group(std::make_shared<HashStore>(), {.rank = 0, .world_size = 2}, {.address = address});
    });
    EXPECT_NE(error.find("set LOCKSTEP_INTERFACE to one of them"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace lockstep::distributed
