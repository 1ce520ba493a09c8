// What ranks write of their operations when they crash, fail, or are asked.

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/distributed/fault_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::fault_test {
namespace {

using testing::TemporaryPath;
constexpr Milliseconds kEnough{20'000};

/// All that one rank has dumped into the folder.
std::string dump_of(const std::string& folder, int rank) {
  std::string text;
  const std::string prefix = "rank" + std::to_string(rank) + ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    std::ifstream file(entry.path());
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

TEST(Dumps, AfterACrashAndOnTheRanksThatFailWithIt) {
  const TemporaryPath folder;
  const HostedStore store;
  auto environment = store.environment();
  environment["LOCKSTEP_DUMP_DIR"] = folder.text();
  // A sanitizer's own handler would come first.
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    const char* const inherited = std::getenv(name);
    environment[name] = (inherited ? std::string(inherited) + ":" : "") + "handle_segv=0";
  }
  Job job("segv", 1, "env://", environment);
  job.wait_until_ready();
  EXPECT_EQ(job[1].status(kEnough), 128 + SIGSEGV) << "the signal keeps its effect";
  EXPECT_NE(job[1].err().find(" SIGSEGV at step 5 after all_reduce #17 (bucket 0: "), std::string::npos)
      << job[1].err();
  for (Worker* survivor : job.survivors()) EXPECT_EQ(survivor->status(kEnough), 3);

  const std::string crashed = dump_of(folder.text(), 1);
  EXPECT_TRUE(crashed.starts_with("{\"dump\":\"SIGSEGV\",\"rank\":1,\"world_size\":3,")) << crashed;
  EXPECT_NE(crashed.find("\"label\":\"bucket 0: fc2.bias, fc2.weight, fc1.bias, fc1.weight\",\"step\":5,"),
            std::string::npos)
      << crashed;
  for (const int rank : {0, 2}) {
    const std::string failed = dump_of(folder.text(), rank);
    EXPECT_NE(failed.find("rank 1 is gone"), std::string::npos) << failed;
    EXPECT_NE(failed.find("\"state\":\"started\""), std::string::npos) << "the operation that was under way\n"
                                                                       << failed;
  }
}

TEST(Dumps, OnRequestWhileTheJobGoesOn) {
  const TemporaryPath folder;
  const HostedStore store;
  auto environment = store.environment();
  environment["LOCKSTEP_DUMP_DIR"] = folder.text();
  Job job("slow", 1, "env://", environment);
  job.wait_until_ready();
  ASSERT_EQ(job[1].line("phase", kEnough), "slow");
  job[1].signal(SIGUSR1);
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job[r].status(kEnough), 0) << job[r].err();
  EXPECT_NE(job[1].err().find(" SIGUSR1 at step 5 after all_reduce #17"), std::string::npos) << job[1].err();
  EXPECT_TRUE(dump_of(folder.text(), 1).starts_with("{\"dump\":\"SIGUSR1\",\"rank\":1,"));
  EXPECT_EQ(dump_of(folder.text(), 0), "") << "nobody asked rank 0";
}

TEST(Dumps, OnRequestWithoutAFolder) {
  const HostedStore store;
  auto environment = store.environment();
  environment["LOCKSTEP_DUMP_DIR"] = "";
  Job job("slow", 1, "env://", environment);
  job.wait_until_ready();
  ASSERT_EQ(job[1].line("phase", kEnough), "slow");
  job[1].signal(SIGUSR1);
  for (int r = 0; r < kWorld; ++r) EXPECT_EQ(job[r].status(kEnough), 0) << job[r].err();
  EXPECT_NE(job[1].err().find(" SIGUSR1 at step 5 after all_reduce #17"), std::string::npos) << job[1].err();
}

// The signal ends a program that has no handler for it.
TEST(Dumps, OnRequestInAProcessThatRunsAlone) {
  const HostedStore store;
  Worker alone({.world_size = 1, .scenario = "slow", .faulty = 0, .environment = store.environment()});
  ASSERT_EQ(alone.line("phase", kEnough), "slow") << alone.err();
  alone.signal(SIGUSR1);
  EXPECT_EQ(alone.status(kEnough), 0) << alone.err();
  EXPECT_NE(alone.err().find(" SIGUSR1 after all_reduce #0"), std::string::npos) << alone.err();
}

}  // namespace
}  // namespace lockstep::fault_test
