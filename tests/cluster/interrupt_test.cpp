// Ctrl+C on a training, and a launcher that is killed: nothing is left, and soon.

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/cluster/cluster_support.h"
#include "tests/distributed/launcher_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;
using launcher_test::Process;
using launcher_test::wait_until_gone;
using Clock = std::chrono::steady_clock;

/// The processes that `parent` has started and not yet reaped.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const std::size_t name_end = text.rfind(')');  // "pid (name) state parent"
    if (name_end != std::string::npos && text.size() > name_end + 4 && std::atoi(&text[name_end + 4]) == parent)
      found.push_back(pid);
  }
  return found;
}

/// "run": under lockstep-run; "nproc": mnist_train starts its processes itself.
class Interrupt : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  }
  TemporaryDirectory folder_;
};

INSTANTIATE_TEST_SUITE_P(All, Interrupt,
                         ::testing::Combine(::testing::Values("run", "nproc"), ::testing::Values(SIGINT, SIGKILL)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == SIGINT ? "CtrlC" : "Killed");
                         });

TEST_P(Interrupt, EndsATrainingWithinFiveSeconds) {
  const auto [way, signal] = GetParam();
  const std::string metrics = folder_.file("metrics.jsonl");
  const Arguments training = training_program(1'000'000) + Arguments{"--metrics", metrics};
  const Arguments command = way == std::string("run")
                                ? Arguments{LOCKSTEP_RUN, "--nproc-per-node", "2", "--"} + training
                                : training + Arguments{"--nproc", "2"};
  Process process(command);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  const auto trains = [&] { return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 0; };
  while (!trains() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(trains());
  const std::vector<pid_t> children = children_of(process.pid());
  EXPECT_EQ(children.size(), 3u);  // two ranks and the launcher's guard
  const auto start = Clock::now();
  process.signal(signal);
  EXPECT_EQ(process.wait(20).status, 128 + signal);
  for (const pid_t pid : children) EXPECT_TRUE(wait_until_gone(pid, 5)) << "process " << pid << " is left";
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace lockstep
