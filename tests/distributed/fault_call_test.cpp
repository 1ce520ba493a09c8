// A rank that makes other calls than the others, or none any more.

#include <cstdlib>

#include "tests/distributed/fault_support.h"

namespace lockstep::fault_test {
namespace {

const Fault kFaults[] = {
    {.name = "SkipsAStep",
     .text = "rank 1 skips a step, in a loop that numbers its steps (`set_step(step, true)`)",
     .scenario = "skip",
     .expected = {.everywhere = {"mismatched collectives: rank 1 called", "at step 6", "at step 5"}}},
    {.name = "SkipsAStepUnnumbered",
     .text = "rank 1 skips a step, in a loop that does not",
     .scenario = "skip_unnumbered",
     .expected = {.everywhere = {"rank 1 left the group in good order"}, .in_report = {"the same number of calls"}}},
    {.name = "OtherOperation",
     .text = "rank 1 calls another collective",
     .scenario = "operation",
     .expected = {.everywhere = {"mismatched collectives: rank 1 called broadcast #",
                                 "ranks 0, 2 wait in all_reduce #"}}},
    {.name = "OtherShape",
     .text = "rank 1 calls with another shape",
     .scenario = "shape",
     .expected = {.everywhere = {"mismatched collectives: rank 1 called all_reduce #", "(float32 [7], sum)"}}},
    {.name = "OtherDtype",
     .text = "rank 1 calls with another dtype",
     .scenario = "dtype",
     .expected = {.everywhere = {"mismatched collectives: rank 1 called all_reduce #", "(float32 [3], sum)",
                                 "(float64 [3], sum"}}},
    {.name = "OtherReduction",
     .text = "rank 1 calls with another reduction",
     .scenario = "reduction",
     .expected = {.everywhere = {"mismatched collectives: rank 1 called all_reduce #", "(float64 [3], max)"}}},
    {.name = "Throws",
     .text = "rank 1 throws a `lockstep::Error`",
     .scenario = "throw",
     .expected = {.everywhere = {"rank 1 threw: [linear]"}}},
    {.name = "ThrowsItsOwn",
     .text = "rank 1 throws an exception of the program's own",
     .scenario = "throw_own",
     .expected = {.everywhere = {"rank 1 threw an exception; what it says stands in its own stderr"}}},
    {.name = "ThrowsItsOwnOfDividedParameters",
     .text = "rank 1 throws an exception of the program's own, and parameters are divided",
     .scenario = "divided_throw_own",
     .expected = {.everywhere = {"rank 1 threw an exception; what it says stands in its own stderr"}}},
    {.name = "ThrowsInTheLossOfDividedParameters",
     .text = "rank 1 throws in the loss, and parameters are divided",
     .scenario = "divided_loss",
     .expected = {.everywhere = {"rank 1 threw: out of butter"}}},
    {.name = "ThrowsUncaught",
     .text = "rank 1 throws, and nobody catches it",
     .scenario = "uncaught",
     .expected = {.everywhere = {"rank 1 threw: out of bread"}}},
    {.name = "InRank0Only",
     .text = "rank 0 calls a collective inside `rank0_only`",
     .scenario = "rank0_only",
     .faulty = 0,
     .expected = {.everywhere = {"rank 0 threw: [all_reduce] was called on rank 0 inside rank0_only(\"counting the "
                                 "samples\")"}}},
    {.name = "Returns",
     .text = "rank 1 returns from main with status 0",
     .scenario = "return",
     .expected = {.everywhere = {"rank 1 left the group in good order"}}},
    {.name = "Exits",
     .text = "rank 1 calls `exit(0)`",
     .scenario = "exit",
     .expected = {.everywhere = {"rank 1 called exit()"}}},
    {.name = "ExitsAtOnce",
     .text = "rank 1 calls `_exit(0)`",
     .scenario = "_exit",
     .expected = {.everywhere = {"rank 1 is gone: process "}}},
    {.name = "Hangs",
     .text = "rank 1 is busy elsewhere for longer than the deadline",
     .scenario = "late",
     .expected = {.everywhere = {"rank 1 is alive, but last seen after all_reduce #"}, .in_report = {"kill -USR1"}}},
};

class Calls : public ::testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(All, Calls, ::testing::ValuesIn(kFaults), [](const auto& info) { return info.param.name; });

TEST_P(Calls, AreNamedByTheOthers) {
  // An uncaught exception of the faulty rank is one of the others' too, as they run the same program.
  Fault fault = GetParam();
  if (fault.scenario == "uncaught") fault.expected.status = 128 + SIGABRT;
  run(fault);
}

TEST(CallsOnGloo, AreNamedByTheOthers) {
  run({.text = "rank 1 calls with another shape, Gloo",
       .scenario = "shape",
       .expected = {.everywhere = {"mismatched collectives: rank 1 called all_reduce #", "(float32 [7], sum)"}}},
      "gloo");
}

TEST(Calls, ASlowRankIsNoFault) {
  const HostedStore store;
  Job job("slow", 1, "env://", store.environment());
  job.wait_until_ready();
  ASSERT_EQ(job[1].line("phase", Milliseconds(20'000)), "slow");
  Row row("rank 1 is busy for half the deadline");
  row.check({&job[0], &job[1], &job[2]}, {.status = 0, .report = false});
}

// A child that throws, or returns from main(), is no rank, and what it takes down is its parent's.
TEST(Calls, AForkedChildThatEndsIsNoFault) {
  for (const auto& [scenario, status] :
       {std::pair("fork_throw", 3), std::pair("fork_return", 0), std::pair("fork_use", 0)}) {
    const HostedStore store;
    auto environment = store.environment();
    // A child has the memory of threads that it does not have: to a leak check all of it is lost.
    const char* const options = std::getenv("ASAN_OPTIONS");
    environment["ASAN_OPTIONS"] = (options ? std::string(options) + ":" : "") + "detect_leaks=0";
    Job job(scenario, 1, "env://", environment);
    job.wait_until_ready();
    EXPECT_EQ(job[1].line("child", Milliseconds(30'000)), std::to_string(status << 8)) << scenario;
    for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job[r].status(Milliseconds(20'000)), 0) << scenario << job[r].err();
    EXPECT_EQ(job[1].err().find("child: [all_reduce] this process is a forked child of process") != std::string::npos,
              scenario == std::string("fork_use"))
        << job[1].err();
  }
}

}  // namespace
}  // namespace lockstep::fault_test
