// kill -9 of each rank at each place, and signals that stop a process.

#include <thread>

#include "tests/distributed/fault_support.h"

namespace lockstep::fault_test {
namespace {

class Killed : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

INSTANTIATE_TEST_SUITE_P(All, Killed,
                         ::testing::Combine(::testing::Values("forward", "backward", "collective", "checkpoint"),
                                            ::testing::Range(0, kWorld)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "Rank" + std::to_string(std::get<1>(info.param));
                         });

TEST_P(Killed, IsNamedByTheOthers) {
  const auto& [place, rank] = GetParam();
  const std::string who = "rank " + std::to_string(rank);
  run({.text = "`kill -9` of " + who + " in " + (place == "checkpoint" || place == "collective" ? "a " + place : place),
       .scenario = place,
       .faulty = rank,
       .signal = SIGKILL,
       .expected = {.everywhere = {who + " is gone: process ", "last seen ", " at step 5"},
                    .in_report = {"what to do: look at"}}});
}

class KilledOnGloo : public ::testing::Test {};

TEST_F(KilledOnGloo, InACollective) {
  run({.text = "`kill -9` of rank 1 in a collective, Gloo",
       .scenario = "collective",
       .signal = SIGKILL,
       .expected = {.everywhere = {"rank 1 is gone: process "}}},
      "gloo");
}

class InAPart : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, InAPart, ::testing::Values("auto", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// Ranks 1 and 2 are in a group of their own, and rank 0 is not.
TEST_P(InAPart, AKilledRankIsNamedByTheWholeJob) {
  const std::string backend = GetParam();
  run({.text = "`kill -9` of rank 1 in an operation of a group of ranks 1 and 2" +
               std::string(backend == "gloo" ? ", Gloo" : ""),
       .scenario = "part",
       .signal = SIGKILL,
       .expected = {.everywhere = {"rank 1 is gone: process "}, .in_report = {"the group of 3 ranks has failed"}}},
      backend);
}

TEST_P(InAPart, AStoppedRankIsNamedByTheWholeJob) {
  const std::string backend = GetParam();
  run({.text = "`SIGSTOP` of rank 1 in an operation of a group of ranks 1 and 2" +
               std::string(backend == "gloo" ? ", Gloo" : ""),
       .scenario = "part",
       .signal = SIGSTOP,
       .expected = {.everywhere = {"rank 1 is stopped (SIGSTOP or a debugger)"}}},
      backend);
}

TEST(Split, AKilledRankIsNamedByTheOthers) {
  run({.text = "`kill -9` of rank 1 while the others split the group",
       .scenario = "split",
       .signal = SIGKILL,
       .expected = {.everywhere = {"rank 1 is gone: process ", "split of the group"}}});
}

class KilledInRendezvous : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(All, KilledInRendezvous, ::testing::Range(0, kWorld),
                         [](const auto& info) { return "Rank" + std::to_string(info.param); });

TEST_P(KilledInRendezvous, IsNamedByTheOthers) {
  const int faulty = GetParam();
  const HostedStore store;
  std::vector<std::unique_ptr<Worker>> workers;
  const auto start = [&](int rank) {
    workers.push_back(std::make_unique<Worker>(
        WorkerOptions{.rank = rank, .scenario = "rendezvous", .faulty = faulty, .environment = store.environment()}));
  };
  start(faulty);
  ASSERT_EQ(workers[0]->line("starting", Milliseconds(20'000)), "");
  store.wait_for_keys(4);  // the number of ranks, its machine, its process, and that it has come
  workers[0]->signal(SIGKILL);
  EXPECT_EQ(workers[0]->status(Milliseconds(5'000)), 128 + SIGKILL);
  Row row("`kill -9` of rank " + std::to_string(faulty) + " in the rendezvous, before the others come");
  std::vector<Worker*> survivors;
  for (int r = 0; r < kWorld; ++r) {
    if (r == faulty) continue;
    start(r);
    survivors.push_back(workers.back().get());
  }
  row.check(survivors,
            {.everywhere = {"rank " + std::to_string(faulty) + " came, but is gone: process "}, .report = false});
}

TEST(Stopped, IsNamedByTheOthers) {
  run({.text = "`SIGSTOP` of rank 1",
       .scenario = "forward",
       .signal = SIGSTOP,
       .expected = {.everywhere = {"rank 1 is stopped (SIGSTOP or a debugger)"}, .in_report = {"kill -CONT"}}});
}

class StoodStill : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, StoodStill, ::testing::Values("stands_still", "divided_stands_still"));

// It goes on when the others have given up, and finds them gone.
TEST_P(StoodStill, IsWhatTheRankSaysOfItself) {
  const HostedStore store;
  Job job(GetParam(), 1, "env://", store.environment());
  job.wait_until_ready();
  ASSERT_EQ(job[1].line("phase", Milliseconds(20'000)), GetParam());
  for (Worker* worker : job.survivors()) EXPECT_EQ(worker->status(8 * kDeadline), 3);
  job[1].signal(SIGCONT);
  EXPECT_EQ(job[1].status(8 * kDeadline), 3);
  EXPECT_NE(job[1].err().find(" failed: this process itself stood still for "), std::string::npos) << job[1].err();
}

TEST(Crashed, IsNamedByTheOthers) {
  run({.text = "a crash (`SIGSEGV`) of rank 1",
       .scenario = "segv",
       .expected = {.everywhere = {"rank 1 is gone: process "}}});
}

class StoreHolder : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(All, StoreHolder, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) { return info.param == SIGKILL ? "Killed" : "Stopped"; });

TEST_P(StoreHolder, IsNamedByTheOthers) {
  const bool killed = GetParam() == SIGKILL;
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  Job job("forward", 0, url, {});
  job.wait_until_ready();
  ASSERT_EQ(job[0].line("phase", Milliseconds(20'000)), "forward");
  std::this_thread::sleep_for(kSeen);
  Row row(std::string(killed ? "`kill -9`" : "`SIGSTOP`") + " of rank 0, which holds the store");
  job[0].signal(GetParam());
  row.check(job.survivors(),
            {.everywhere = {killed ? "rank 0 is gone" : "rank 0 is stopped", "the store does not answer"}});
}

}  // namespace
}  // namespace lockstep::fault_test
