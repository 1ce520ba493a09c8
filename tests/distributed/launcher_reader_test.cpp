// Readers of lockstep-run's output that stand still, or are gone.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "launcher_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::launcher_test {
namespace {

TEST(Launcher, AsksWorkersToEndIfNobodyReadsItsOutput) {
  const std::string launcher = LOCKSTEP_RUN_PROGRAM;
  const Finished run =
      Process({"/bin/sh", "-c",
               "{ " + launcher +
                   " --nproc-per-node 1 -- sh -c 'trap \"echo saved >&2; exit 3\" TERM; while :; do echo "
                   "line; sleep 0.05; done'; echo status $? >&2; } | head -n 1"})
          .wait();
  EXPECT_TRUE(has(run.err, "[0] saved"));
  EXPECT_TRUE(has(run.err, "ended by SIGPIPE: nobody reads its stdout or stderr any more"));
  EXPECT_TRUE(has(run.err, "status " + std::to_string(128 + SIGPIPE)));
}

TEST(Launcher, SaysThatNobodyHasReadTheLastLines) {
  const std::string launcher = LOCKSTEP_RUN_PROGRAM;
  for (int round = 0; round < 3; ++round) {
    const Finished run =
        Process({"/bin/sh", "-c",
                 "{ " + launcher +
                     " --nproc-per-node 1 -- sh -c 'trap \"\" TERM; echo first; sleep 0.3; echo last'; echo status $? "
                     ">&2; } | head -n 1"})
            .wait();
    EXPECT_TRUE(has(run.err, "ended by SIGPIPE") || has(run.err, "could not all be written: Broken pipe")) << run.err;
    EXPECT_FALSE(has(run.err, "status 0")) << run.err;
  }
}

TEST(Launcher, LooksAfterItsWorkersWhileNobodyReadsItsOutput) {
  // Rank 0 writes more than is kept; rank 1 fails soon after.
  Process process(lockstep_run_command(
      {"--nproc-per-node", "2", "--", "sh", "-c",
       "[ $RANK = 0 ] && { echo pid=$$; exec yes 'a line that nobody reads'; }; sleep 0.7; exit 9"}));
  ASSERT_TRUE(process.wait_for_output("pid="));
  const int writer = numbers_after(process.output(), "pid=").front();
  EXPECT_TRUE(wait_until_gone(writer, 4));
  const Finished run = process.wait();
  EXPECT_EQ(run.status, 9);
  EXPECT_TRUE(has(run.err, "rank 1 (pid "));
  EXPECT_GT(run.out.size(), std::size_t{1} << 20);  // nothing that was taken from a worker is lost
  EXPECT_EQ(run.out.back(), '\n');
}

TEST(Launcher, SaysThatASignalGaveUpTheLastLines) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const testing::TempDir place;
    const std::string done = std::string(place.path()) + "/done";
    Process process(lockstep_run_command({"--nproc-per-node", "1", "--", "sh", "-c", "seq 50000; touch " + done}));
    for (int i = 0; i < 1000 && !std::filesystem::exists(done); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the worker has ended, and its lines wait
    process.signal(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const Finished run = process.wait();
    EXPECT_EQ(run.status, 128 + signal);
    EXPECT_TRUE(has(run.err, ": what goes to stdout waited for its reader, and what is left of it is lost"));
    EXPECT_LT(std::count(run.out.begin(), run.out.end(), '\n'), 50'000);
  }
}

// A worker that waited for the reader would look to the others as one that hangs.
TEST(Launcher, LetsWorkersGoOnWhileAReaderStandsStill) {
  const auto wait_for = [](const std::string& file, double seconds) {
    for (; seconds > 0 && !std::filesystem::exists(file); seconds -= 0.02)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return std::filesystem::exists(file);
  };
  const testing::TempDir place;
  const std::string folder = place.path();
  {  // Rank 0 of --nproc: all of it comes when somebody reads again, to the last byte.
    Process process({LOCKSTEP_LAUNCHER_WORKER, "flood", folder + "/plain"});
    EXPECT_TRUE(wait_for(folder + "/plain", 60));
    const Finished run = process.wait();
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_TRUE(has(run.out, "line 19999, which nobody reads\nunfinished"));
    EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 20'000);
  }
  // More than is kept: the oldest lines make place, and are told of.
  constexpr int kLines = 200'000;
  Process process(lockstep_run_command({"--nproc-per-node", "1", "--", "sh", "-c",
                                        "seq -f %0100.0f " + std::to_string(kLines) + "; touch " + folder + "/long"}));
  EXPECT_TRUE(wait_for(folder + "/long", 60));
  const Finished run = process.wait(60);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(run.out.starts_with("[0] 0000"));
  EXPECT_TRUE(run.out.ends_with("00" + std::to_string(kLines) + "\n"));
  const std::vector<int> missing = numbers_after(run.out, "\nwarning: ");
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n') - 1 + missing[0], kLines);
}

}  // namespace
}  // namespace lockstep::launcher_test
