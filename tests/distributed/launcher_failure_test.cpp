// Which rank lockstep-run takes for the cause.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher_support.h"

namespace lockstep::launcher_test {
namespace {

Finished run_shell(const std::string& script) {
  return lockstep_run({"--nproc-per-node", "3", "--", "sh", "-c", script});
}

class FirstFailure : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, FirstFailure, ::testing::Values("throw", "throw_own", "uncaught", "segv"));

// The other ranks fail because of it, and end before or after it as it happens.
TEST_P(FirstFailure, IsReportedWithItsOwnMessage) {
  const std::string scenario = GetParam();
  for (int i = 0; i < 4; ++i) {
    const Finished run =
        run_shell("exec " LOCKSTEP_FAULT_WORKER " env:// $RANK $WORLD_SIZE 10000 " + scenario + " 1 auto");
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(has(run.err, "lockstep-run: rank 1 (pid "));
    EXPECT_TRUE(has(run.err, "failed first"));
    if (scenario == "throw_own") {
      EXPECT_TRUE(has(run.err, "[1] fault_worker: out of milk"));
    }
    if (scenario == "uncaught") {
      EXPECT_TRUE(has(run.err, "out of bread"));
    }
  }
}

// A rank may be held up at its end for longer than the others take to follow it.
TEST(Launcher, NamesTheRankThatSaidThatItFailsThoughItDoesNotEnd) {
  const Finished run = run_shell(
      "case $RANK in 1) echo '1 !threw: no milk' >/proc/self/fd/${LOCKSTEP_FAILURE_PIPE%%:*}; "
      "echo no milk >&2; exec sleep 60;; "
      "*) sleep 0.3; echo \"$RANK ~rank 1 reported a failure\" >/proc/self/fd/${LOCKSTEP_FAILURE_PIPE%%:*}; "
      "exit 3;; esac");
  EXPECT_EQ(run.status, 3);
  EXPECT_LT(run.seconds, 10);
  EXPECT_TRUE(has(run.err, "rank 1 (pid "));
  EXPECT_TRUE(has(run.err, "failed first: after 0."));
  EXPECT_TRUE(has(run.err, "it had said that it fails, and did not end by itself (it threw: no milk)"));
}

// One that calls exit() has not failed, but is what the others fail of.
TEST(Launcher, NamesTheRankThatHadEndedAsIfItsWorkWereDone) {
  const Finished run = run_shell(
      "case $RANK in 1) exit 0;; "
      "*) sleep 0.3; echo \"$RANK ~rank 1 called exit()\" >/proc/self/fd/${LOCKSTEP_FAILURE_PIPE%%:*}; exit 3;; esac");
  EXPECT_EQ(run.status, 3);
  EXPECT_TRUE(has(run.err, "failed first: it exited with status 3"));
  EXPECT_TRUE(has(run.err, "; before it rank 1 had ended with status 0"));
}

}  // namespace
}  // namespace lockstep::launcher_test
