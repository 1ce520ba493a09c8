// Jobs that do not come together as planned.

#include <thread>

#include "lockstep/distributed/store/socket.h"
#include "tests/distributed/fault_support.h"

namespace lockstep::fault_test {
namespace {

/// Starts all ranks but the last, and that one `delay` later.
std::vector<std::unique_ptr<Worker>> start_late(const HostedStore& store, Milliseconds delay,
                                                Milliseconds deadline = kDeadline) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int r = 0; r < kWorld; ++r) {
    if (r == kWorld - 1) std::this_thread::sleep_for(delay);
    workers.push_back(std::make_unique<Worker>(
        WorkerOptions{.rank = r, .scenario = "train", .deadline = deadline, .environment = store.environment()}));
  }
  return workers;
}

TEST(Start, HalfTheTimeoutLateIsNoFault) {
  const HostedStore store;
  Row row("rank 2 starts late by half the timeout (4 s here)");
  const Milliseconds timeout = 2 * kDeadline;  // half of it must be enough for processes to start
  const auto workers = start_late(store, timeout / 2, timeout);
  row.check({workers[0].get(), workers[1].get(), workers[2].get()}, {.status = 0, .report = false});
}

TEST(Start, MoreThanTheTimeoutLate) {
  const HostedStore store;
  Row row("rank 2 starts late by more than the timeout: ranks 0 and 1");
  const auto workers = start_late(store, kDeadline + Milliseconds(500));
  row.check({workers[0].get(), workers[1].get()},
            {.everywhere = {"of 3 ranks, these did not come within", "2; start them"}, .report = false});
  Row late("rank 2 starts late by more than the timeout: rank 2");
  late.check({workers[2].get()}, {.everywhere = {"rank 2 has come too late"}, .report = false}, kDeadline);
}

TEST(Start, NeverComes) {
  const HostedStore store;
  Row row("rank 2 never comes");
  Worker first({.rank = 0, .scenario = "train", .environment = store.environment()});
  Worker second({.rank = 1, .scenario = "train", .environment = store.environment()});
  row.check({&first, &second}, {.everywhere = {"of 3 ranks, these did not come within"}, .report = false});
}

TEST(Start, PortTaken) {
  const auto listener = distributed::listen_on("127.0.0.1", 0);  // accepts nobody and says nothing
  const std::string url = "tcp://127.0.0.1:" + std::to_string(distributed::bound_port(listener.get()));
  Row row("the port is taken by another program");
  Job job("train", -1, url, {});
  row.check(job.survivors(), {.everywhere = {"127.0.0.1:"}, .report = false});
}

TEST(Start, TwoJobsOnOnePort) {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  Job first("late", 1, url, {{"LOCKSTEP_TOKEN", "the first job's secret"}});
  first.wait_until_ready();
  Row row("two jobs on one port: the second one");
  Job second("train", -1, url, {{"LOCKSTEP_TOKEN", "the second job's secret"}});
  row.check(second.survivors(), {.report = false});
}

TEST(Start, TwoJobsOnOnePortWithoutAToken) {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  Job first("slow", 1, url, {});
  first.wait_until_ready();
  ASSERT_EQ(first[1].line("phase", Milliseconds(20'000)), "slow");
  {
    Row row("two jobs on one port, neither with a token: the second one");
    Job second("train", -1, url, {});
    row.check(second.survivors(), {.report = false});
  }
  Row row("two jobs on one port, neither with a token: the first one");
  row.check({&first[0], &first[1], &first[2]}, {.status = 0, .report = false});
}

TEST(Start, HalfOpenConnectionsToTheStore) {
  const int port = free_port();
  Row row("clients connect to the store and say nothing (half-open connections)");
  Job job("slow", 1, "tcp://127.0.0.1:" + std::to_string(port), {});
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 20; ++i)
    silent.push_back(distributed::connect_to("127.0.0.1", static_cast<std::uint16_t>(port),
                                             std::chrono::steady_clock::now() + Milliseconds(10'000)));
  row.check({&job[0], &job[1], &job[2]}, {.status = 0, .report = false});
}

// A rank that has no descriptors left for Gloo's connections; what the others wait for never comes.
TEST(OutOfDescriptors, IsToldAsWhatItIsAndEndsAllByTheDeadline) {
  const HostedStore store;
  std::vector<std::unique_ptr<Worker>> workers;
  Row row("rank 1 may open no more files when Gloo connects the ranks");
  for (int r = 0; r < kWorld; ++r) {
    WorkerOptions options{.rank = r, .scenario = "none", .backend = "gloo", .environment = store.environment()};
    if (r == 1) options.wrapper = {"sh", "-c", "ulimit -n 6; exec \"$@\"", "sh"};
    workers.push_back(std::make_unique<Worker>(options));
  }
  EXPECT_EQ(workers[1]->status(2 * kDeadline), 3);
  EXPECT_NE(workers[1]->err().find("raise the limit on open files (ulimit -n)"), std::string::npos)
      << workers[1]->err();
  row.check({workers[0].get(), workers[2].get()},
            {.everywhere = {"cannot connect to the other ranks", "rank 1 is gone"}, .report = false}, 3 * kDeadline);
}

}  // namespace
}  // namespace lockstep::fault_test
