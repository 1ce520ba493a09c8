// A job that trains while strangers do to its store's port whatever they can.

#include "tests/cluster/flood.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "tests/cluster/cluster_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

constexpr int kConnections = 1000;
constexpr int kSteps = 200;
constexpr std::chrono::seconds kLimit{150};

/// The first number in a file, once it is there; 0 if it does not come.
int wait_for_number(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream file(path);
    if (int number = 0; file >> number) return number;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return 0;
}

class StoreFlood : public ::testing::Test {
 protected:
  void SetUp() override {
    if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  }

  /// Two ranks that start once the file "go" is there, and write the store's port to the file "port" before.
  ProcessResult run(const std::string& folder) {
    const std::string script =
        "if [ $RANK = 0 ]; then echo $MASTER_PORT > $0/port.new; mv $0/port.new $0/port; fi\n"
        "until [ -e $0/go ]; do sleep 0.05; done\n"
        "exec \"$@\"";
    return run_process(Arguments{LOCKSTEP_RUN, "--nproc-per-node", "2", "--", "/bin/sh", "-c", script, folder} +
                           training_program(kSteps),
                       kClean, kLimit);
  }
};

TEST_F(StoreFlood, AJobMeetsTrainsAndEndsUnharmed) {
  TemporaryDirectory calm;
  std::ofstream(calm.file("go")) << "now";
  const ProcessResult undisturbed = run(calm.path());
  ASSERT_EQ(undisturbed.status, 0) << undisturbed.err;
  ASSERT_NE(outcome(undisturbed.out), "") << undisturbed.out;

  TemporaryDirectory rough;
  auto job = std::async(std::launch::async, [&] { return run(rough.path()); });
  const int port = wait_for_number(rough.file("port"));
  ASSERT_GT(port, 0) << job.get().err;
  Flood flood(port, kConnections);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (flood.open() < kConnections * 9 / 10 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const int open_before = flood.open();
  std::ofstream(rough.file("go")) << "now";
  const ProcessResult result = job.get();
  const int opened = flood.opened();

  EXPECT_GE(open_before, kConnections * 9 / 10);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(outcome(result.out), outcome(undisturbed.out)) << result.err;
  EXPECT_GT(opened, kConnections);
  EXPECT_GT(flood.bytes_sent(), 1'000'000);
  // What the store says about it is bounded: ten lines in ten seconds.
  EXPECT_LT(std::count(result.err.begin(), result.err.end(), '\n'), 200) << result.err;
  std::printf("%d connections opened, %lld bytes of garbage\n", opened, static_cast<long long>(flood.bytes_sent()));
}

}  // namespace
}  // namespace lockstep
