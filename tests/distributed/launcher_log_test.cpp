// The files of --log-dir.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "launcher_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::launcher_test {
namespace {

std::vector<std::string> shell(int workers, const std::string& folder, const std::string& script) {
  return {"--nproc-per-node", std::to_string(workers), "--log-dir", folder, "--", "sh", "-c", script};
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LauncherLog, IsAFileForEachRank) {
  const testing::TempDir place;
  const std::string folder = place / "deeper/logs";
  const Finished run = lockstep_run(shell(2, folder, "echo out $RANK; echo err $RANK >&2"));
  EXPECT_EQ(run.status, 0) << run.err;
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(contents(folder + "/rank" + rank + ".out"), "out " + rank + "\n");
    EXPECT_EQ(contents(folder + "/rank" + rank + ".err"), "err " + rank + "\n");
  }
}

TEST(LauncherLog, ThatCannotBeWrittenIsToldOnce) {
  const testing::TempDir place;
  const std::string folder = place.path();
  const std::string launcher = LOCKSTEP_RUN_PROGRAM;
  const Finished run = Process({"/bin/sh", "-c",
                                "ulimit -f 0; exec " + launcher + " --nproc-per-node 2 --log-dir " + folder +
                                    " -- sh -c 'echo out; echo err >&2'"})
                           .wait();
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(sorted_lines(run.out), (std::vector<std::string>{"[0] out", "[1] out"}));
  EXPECT_TRUE(has(run.err, "are not complete: File too large")) << run.err;
  EXPECT_EQ(run.err.find("not complete"), run.err.rfind("not complete"));
}

// Each would empty what the other has written.
TEST(LauncherLog, IsNotSharedByTwoJobs) {
  const testing::TempDir place;
  const std::string folder = place.path();
  Process first(lockstep_run_command(shell(2, folder, "echo the first $RANK; sleep 60")));
  ASSERT_TRUE(first.wait_for_output("the first 0") && first.wait_for_output("the first 1"));
  const Finished second = lockstep_run(shell(2, folder, "echo the second"));
  EXPECT_EQ(second.status, 1) << second.out;
  EXPECT_TRUE(has(second.err, "rank0.out' is written by another job, which is still running; name another --log-dir"))
      << second.err;
  EXPECT_EQ(contents(folder + "/rank0.out"), "the first 0\n");
  first.signal(SIGTERM);
  first.wait();
  EXPECT_EQ(lockstep_run(shell(2, folder, "echo the second")).status, 0);  // one after the other they may
  EXPECT_EQ(contents(folder + "/rank1.out"), "the second\n");
}

// Neither a pipe that nobody reads, which would hold the launcher up for ever, nor one that somebody does.
TEST(LauncherLog, ThatIsNoFileIsRefused) {
  const testing::TempDir place;
  const std::string folder = place.path(), log = folder + "/rank0.out";
  for (const auto& [make, reason] :
       {std::pair<const char*, const char*>{"mkfifo rank0.out", "it is a pipe that nobody reads"},
        {"mkfifo rank0.out; sleep 60 <>rank0.out & sleep 0.2", "is a pipe, a socket or a device"},
        {"ln -s /dev/full rank0.out", "is a pipe, a socket or a device"},
        {"mkdir rank0.out", "Is a directory"}}) {
    std::filesystem::remove_all(log);
    const std::string launcher = LOCKSTEP_RUN_PROGRAM;
    Process process({"/bin/sh", "-c",
                     "cd " + folder + "; " + make + "; timeout -s KILL 10 " + launcher +
                         " --nproc-per-node 1 --log-dir . -- echo out; status=$?; kill %1 2>/dev/null; exit $status"});
    const Finished run = process.wait(20);
    EXPECT_EQ(run.status, 1) << make << run.err;
    EXPECT_TRUE(has(run.err, reason)) << make << run.err;
    EXPECT_TRUE(has(run.err, "/rank0.out")) << run.err;
  }
}

}  // namespace
}  // namespace lockstep::launcher_test
