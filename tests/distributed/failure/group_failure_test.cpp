#include "lockstep/distributed/failure/group_failure.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/distributed/failure/process_end.h"
#include "lockstep/distributed/store/hash_store.h"
#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::Link;

// Rank 0 has failed and rank 2 says nothing, so finding out takes a while; meanwhile this rank leaves.
TEST(GroupFailure, LeavingWaitsForADiagnosisUnderWay) {
  const auto store = std::make_shared<HashStore>();
  const FlightRecorder recorder(16, 1, 3);
  std::atomic<bool> aborted = false;
  GroupFailure failure(recorder, {.rank = 1, .world_size = 3}, Milliseconds(1'000), store, [&] { aborted = true; });
  failure.start();
  store->set("failed", "0");
  store->set("wake/1", "failed");
  const Deadline deadline = deadline_in(Milliseconds(5'000));
  while (!aborted && !has_passed(deadline)) std::this_thread::yield();
  ASSERT_TRUE(aborted);
  std::this_thread::sleep_for(Milliseconds(50));  // the diagnosis, of a quarter of a second, has begun
  failure.stop();
  ASSERT_TRUE(failure.error());
  const std::string text = testing::error_of([&] { std::rethrow_exception(failure.error()); });
  EXPECT_NE(text.find("rank 0 reported a failure"), std::string::npos) << text;
}

// Rank 2 has failed in the job of three; rank 1, which is gone because of that, is missed in the group of ranks 0 and 1
// by rank 0, before news of the job's failure has come to it.
TEST(GroupFailure, OfAPartIsTheJobsIfThatHasFailedBefore) {
  const auto store = std::make_shared<HashStore>(), part_store = std::make_shared<HashStore>();
  const FlightRecorder recorder(16, 0, 3);
  GroupFailure other(recorder, {.rank = 2, .world_size = 3}, Milliseconds(400), store, [] {});
  other.end_by_own_doing("out of milk");
  const auto job = std::make_shared<GroupFailure>(recorder, GroupFailure::Place{.rank = 0, .world_size = 3},
                                                  Milliseconds(400), store, [] {});
  const auto part = std::make_shared<GroupFailure>(
      recorder, GroupFailure::Place{.rank = 0, .world_size = 2, .ranks = {0, 1}, .parent = job}, Milliseconds(400),
      part_store, [] {});
  GroupFailure part_of_part(recorder, {.rank = 0, .world_size = 2, .ranks = {0, 1}, .parent = part}, Milliseconds(400),
                            std::make_shared<HashStore>(), [] {});
  const auto error = part_of_part.fail({"recv #0 (float32 [1], from rank 1)", "rank 1 has closed the connection", 1});
  const std::string text = testing::error_of([&] { std::rethrow_exception(error); });
  EXPECT_NE(text.find("[Rank 0] recv #0 (float32 [1], from rank 1) in the group of ranks 0, 1 failed: rank 2 "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("out of milk"), std::string::npos) << text;
}

// Ranks 1 and 2 do not hear each other; of what follows from that rank 0 tells first.
TEST(GroupFailure, WhomARankHasWaitedForIsToldThoughAnotherHasFailedBefore) {
  const auto store = std::make_shared<HashStore>();
  const FlightRecorder recorder(16, 0, 3);
  std::atomic<bool> aborted[3] = {};
  std::vector<std::unique_ptr<GroupFailure>> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(std::make_unique<GroupFailure>(recorder, GroupFailure::Place{.rank = r, .world_size = 3},
                                                   Milliseconds(4'000), store, [&aborted, r] { aborted[r] = true; }));
    ranks.back()->start();
    const Operation operation{.kind = OperationKind::barrier, .number = r == 0 ? 5u : 4u};
    ranks.back()->monitor()->collective_started(info_of(operation), 1);
  }
  std::vector<std::thread> others;
  for (int r = 1; r < 3; ++r)
    others.emplace_back([&, r] {
      while (!aborted[r]) std::this_thread::sleep_for(Milliseconds(1));
      ranks[static_cast<std::size_t>(r)]->fail(
          {"barrier #4", fmt::format("gave up waiting for rank {}", 3 - r), 3 - r, -1, Way::network});
    });
  const auto error = ranks[0]->fail({"barrier #5", "the connection to rank 1 is lost (reset)", 1, -1, Way::network});
  const std::string text = testing::error_of([&] { std::rethrow_exception(error); });
  EXPECT_NE(text.find("ranks 1, 2 do not hear each other"), std::string::npos) << text;
  for (std::thread& other : others) other.join();
  for (const auto& rank : ranks) rank->stop();
}

// Where there is no link between two ranks none is cut.
TEST(GroupFailure, SlowWorkInsideAMachineIsNoCutLink) {
  for (const Way way : {Way::memory, Way::loopback, Way::network}) {
    Observation waits{.state = PeerState(), .answered = true, .fate = ProcessFate::running};
    waits.state->called = 3;
    waits.state->running = true;
    waits.state->collective = "all_reduce #2 (float32 [62914560], sum)";
    Observation first = waits, second = waits;
    first.state->lost_peer = 1;
    first.state->missed = way;
    second.state->missed = Way::none;
    // As it comes over the store.
    first.state = PeerState::decode(first.state->encode());
    EXPECT_EQ(first.state->missed, way);
    const Diagnosis told = diagnose({"", "timed out", 1, -1, way}, {first, second, waits}, "", 0);
    const bool inside = way != Way::network;
    EXPECT_TRUE(told.headline.starts_with(inside ? "rank 0 has waited for rank 1 longer than the timeout, although all"
                                                 : "rank 0 hears nothing of rank 1, although all"))
        << told.headline;
    EXPECT_EQ(told.culprits,
              inside ? "slow work on ranks 0, 1, or a timeout that is too short" : "the link between ranks 0, 1");
    for (const char* text : {"LOCKSTEP_INTERFACE", "firewall"})
      EXPECT_EQ(told.report.find(text) == std::string::npos, inside) << told.report;
    EXPECT_NE(told.report.find("raise the timeout"), std::string::npos) << told.report;
    EXPECT_EQ(told.report.find("memory that they share") != std::string::npos, way == Way::memory) << told.report;
  }
}

// Nobody need have caught what is on its way: of a rank that has not gone on it is told alone that it has thrown.
TEST(GroupFailure, AnExceptionIsSaidToBeCaughtWhereTheRankHasGoneOn) {
  Observation waits{.state = PeerState(), .answered = true, .fate = ProcessFate::running};
  waits.state->called = 3;
  waits.state->running = true;
  waits.state->collective = "all_reduce #2 (float32 [8], sum)";
  Observation threw = waits;
  threw.state->called = 2;
  threw.state->running = false;
  const auto told = [&](const std::string& exception, bool caught, const std::string& ended_by) {
    threw.state->exception = exception;
    threw.state->caught = caught;
    threw.state->ended_by = ended_by;
    const Observation seen{.state = PeerState::decode(threw.state->encode()), .answered = true};
    const std::string text = diagnose({"", "timed out", 1}, {waits, seen}, "", 0).headline;
    return text.substr(0, text.find("; last seen"));
  };
  const std::string unknown = "rank 1 threw an exception; what it says stands in its own stderr";
  EXPECT_EQ(told("out of milk", true, ""), "rank 1 threw an exception, which the program has caught: out of milk");
  EXPECT_EQ(told("out of milk", false, ""), "rank 1 threw: out of milk");
  EXPECT_EQ(told(kUnknownException, false, ""), unknown);
  EXPECT_EQ(told(kUnknownException, false, reason_of_end(kUnknownException)), unknown);
  EXPECT_EQ(told("out of milk", false, "threw: out of milk"), "rank 1 threw: out of milk");
}

// A rank that is killed after its first operation is known to those that have met it there.
TEST(GroupFailure, ARankIsInTheStoreOnceItHasStarted) {
  for (int round = 0; round < 20; ++round) {
    const auto store = std::make_shared<HashStore>();
    const FlightRecorder recorder(16, 1, 3);
    GroupFailure failure(recorder, {.rank = 1, .world_size = 3}, Milliseconds(1'000), store, [] {});
    failure.start();
    EXPECT_TRUE(store->check({"state/1"}));
    EXPECT_LT(PeerState::decode(store->get("state/1")).since_ms, 60'000) << "no machine's wall clock";
    failure.stop();
  }
}

// Each rank leaves while what became of the others is being found out.
TEST(GroupFailure, RanksThatThrowOneAfterTheOtherAllEnd) {
  for (int round = 0; round < 12; ++round)
    EXPECT_THROW(testing::run_ranks(
                     3, Link::shm,
                     [&](ProcessGroup& group) {
                       group.barrier()->wait();
                       // The last one 0 to 8 ms after the first.
                       std::this_thread::sleep_for(Milliseconds(round * group.rank() * 4 / 11));
                       throw Error("the same on every rank");
                     },
                     Milliseconds(400)),
                 Error);
}

}  // namespace
}  // namespace lockstep::distributed
