// Lockstep training through failures: workers and launchers are killed or stopped, and the weights are those of the
// undisturbed run all the same.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/apps/train_support.h"
#include "tests/apps/worker_process.h"
#include "tests/distributed/launcher_support.h"
#include "tests/support/free_port.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;
using launcher_test::Finished;
using launcher_test::Process;

using Arguments = std::vector<std::string>;

class Elastic : public ::testing::Test {
 protected:
  void SetUp() override {
    if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  }

  Arguments training(int steps) const {
    return dataset() + Arguments{"--lockstep", "8",           "--batch-size",        "64",           "--model",
                                 "lenet",      "--max-steps", std::to_string(steps), "--no-progress"};
  }

  std::string undisturbed(int steps) const {
    const ProcessResult result = train(training(steps) + Arguments{"--mode", "single"});
    EXPECT_EQ(result.status, 0) << result.err;
    return weights_of(result.out);
  }

  Arguments elastic_job(int steps, const Arguments& launcher, const Arguments& more) const {
    return Arguments{LOCKSTEP_RUN, "--min-nproc", "2", "--max-restarts", "3"} + launcher +
           Arguments{"--",           LOCKSTEP_MNIST_TRAIN,
                     "--mode",       "ddp",
                     "--checkpoint", checkpoint(),
                     "--metrics",    directory_.file("metrics.jsonl"),
                     "--threads",    "1"} +
           training(steps) + more;
  }

  std::string checkpoint() const { return directory_.file("checkpoint.safetensors"); }

  void wait_for_checkpoint() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (::access(checkpoint().c_str(), F_OK) != 0) {
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("no checkpoint within 60 s");
      ::usleep(10'000);
    }
  }

  TemporaryDirectory directory_;
};

// One rank's report says what has happened; the others, and the launcher, do not repeat it.
TEST_F(Elastic, AFailureIsToldOnce) {
  Process job(Arguments{LOCKSTEP_RUN, "--nproc-per-node", "3", "--", LOCKSTEP_MNIST_TRAIN, "--mode", "ddp",
                        "--checkpoint", checkpoint(), "--checkpoint-every", "5", "--threads", "1", "--timeout", "20"} +
              training(100'000));
  wait_for_checkpoint();
  ::kill(worker(job.pid(), 1), SIGKILL);
  const Finished end = job.wait(60);
  EXPECT_EQ(end.status, 128 + SIGKILL);
  std::istringstream lines(end.err);
  int reports = 0, rest = 0;
  for (std::string line; std::getline(lines, line);) {
    reports += line.find("has failed: rank 1 is gone") != std::string::npos ? 1 : 0;
    rest += line.find("because of rank 1; rank 0's report says more") != std::string::npos ? 1 : 0;
    EXPECT_TRUE(line.find("mnist_train: ") == std::string::npos || line.find("is gone") == std::string::npos) << line;
  }
  EXPECT_EQ(reports, 1) << end.err;
  EXPECT_EQ(rest, 2) << end.err;
}

TEST_F(Elastic, AKilledWorkerChangesNothing) {
  constexpr int kSteps = 1000;  // a second and more, of which the start takes a third
  const std::string expected = undisturbed(kSteps);
  const int repeats = amount("LOCKSTEP_TEST_REPEATS", 3);
  int disturbed = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    SCOPED_TRACE("repeat " + std::to_string(repeat));
    std::filesystem::remove(checkpoint());
    std::mt19937 random(static_cast<unsigned>(repeat) + 17);
    Process job(elastic_job(kSteps, {"--nproc-per-node", "4"}, {"--checkpoint-every", "20", "--timeout", "20"}));
    const int rank = static_cast<int>(random() % 4);
    // Somewhere in the start, or in the first half of the steps.
    if (repeat % 3 != 0) wait_for_checkpoint();
    std::this_thread::sleep_for(std::chrono::milliseconds((repeat % 3 == 0 ? 200 : 0) + random() % 250));
    if (const pid_t victim = worker(job.pid(), rank); victim > 0) {
      ::kill(victim, SIGKILL);
      ++disturbed;
    }
    const Finished end = job.wait(120);
    EXPECT_EQ(end.status, 0) << end.err;
    EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
    if (end.err.find("was killed by signal 9") == std::string::npos) continue;
    EXPECT_NE(end.err.find("lockstep-run: starting 3 worker(s) again (restart 1 of 3)"), std::string::npos) << end.err;
  }
  EXPECT_GT(disturbed, repeats / 2);
}

TEST_F(Elastic, AStoppedWorkerIsGivenUp) {
  constexpr int kSteps = 200;
  const std::string expected = undisturbed(kSteps);
  Process job(elastic_job(kSteps, {"--nproc-per-node", "4"}, {"--checkpoint-every", "20", "--timeout", "3"}));
  wait_for_checkpoint();
  const pid_t victim = worker(job.pid(), 2);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGSTOP);
  const Finished end = job.wait(120);
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
  EXPECT_NE(end.err.find("again (restart 1 of 3)"), std::string::npos) << end.err;
}

/// True while the process has a file of this folder open that has no name of its own yet, or a hidden one.
bool writes_in(pid_t pid, const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with(folder + "/#") || target.starts_with(folder + "/.")) return true;
  }
  return false;
}

// The kill hits the write itself.
TEST_F(Elastic, AKillDuringTheWriteOfACheckpointChangesNothing) {
  constexpr int kSteps = 120;
  const std::string expected = undisturbed(kSteps);
  Process job(elastic_job(kSteps, {"--nproc-per-node", "4"}, {"--checkpoint-every", "1", "--timeout", "20"}));
  wait_for_checkpoint();
  const pid_t writer = worker(job.pid(), 0);
  ASSERT_GT(writer, 0);
  const std::string folder = std::filesystem::canonical(directory_.path()).string();
  bool killed = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!killed && std::chrono::steady_clock::now() < deadline)
    killed = writes_in(writer, folder) && ::kill(writer, SIGKILL) == 0;
  ASSERT_TRUE(killed);
  const Finished end = job.wait(120);
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
  EXPECT_NE(end.out.find("resumed from"), std::string::npos) << end.out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
}

// SIGTERM, as a batch system sends it before it takes the machine away: all ranks end after the same step, and the next
// start goes on from there.
TEST_F(Elastic, SigtermSavesAndTheNextStartGoesOn) {
  constexpr int kSteps = 600;
  const std::string expected = undisturbed(kSteps);
  const Arguments launcher{"--nproc-per-node", "3"};
  Process job(elastic_job(kSteps, launcher, {"--checkpoint-every", "20"}));
  wait_for_checkpoint();
  job.signal(SIGTERM);
  const Finished stopped = job.wait(60);
  EXPECT_EQ(stopped.status, 128 + SIGTERM) << stopped.err;
  EXPECT_NE(stopped.out.find("stopped by SIGTERM after step"), std::string::npos) << stopped.out << stopped.err;
  EXPECT_EQ(weights_of(stopped.out), "") << "no result line";
  Process again(elastic_job(kSteps, launcher, {}));  // "auto" by itself, under this launcher
  const Finished end = again.wait(120);
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
  EXPECT_NE(end.out.find("resumed from"), std::string::npos) << end.out;
}

class ElasticNodes : public Elastic {
 protected:
  void SetUp() override {
    Elastic::SetUp();
    ::setenv("LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef", 1);
    port_ = free_port();  // node 0 serves on it
  }
  void TearDown() override { ::unsetenv("LOCKSTEP_TOKEN"); }

  std::unique_ptr<Process> node(int rank, int steps) const {
    return std::make_unique<Process>(
        elastic_job(steps,
                    {"--nproc-per-node", "2", "--nnodes", "2", "--node-rank", std::to_string(rank), "--master-addr",
                     "127.0.0.1", "--master-port", std::to_string(port_), "--node-timeout", "5"},
                    {"--checkpoint-every", "20", "--resume", "auto", "--timeout", "20"}));
  }

  int port_ = 0;
};

TEST_F(ElasticNodes, ANodeThatIsStartedAgainIsTakenIn) {
  constexpr int kSteps = 400;
  const std::string expected = undisturbed(kSteps);
  const auto first = node(0, kSteps);
  auto second = node(1, kSteps);
  wait_for_checkpoint();
  second->signal(SIGKILL);
  second->wait();
  second = node(1, kSteps);
  const Finished end = first->wait(120);
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
  EXPECT_EQ(second->wait(60).status, 0);
}

TEST_F(ElasticNodes, ANodeThatStaysAwayIsGoneOnWithout) {
  constexpr int kSteps = 200;
  const std::string expected = undisturbed(kSteps);
  const auto first = node(0, kSteps);
  const auto second = node(1, kSteps);
  wait_for_checkpoint();
  second->signal(SIGKILL);
  second->wait();
  const Finished end = first->wait(120);
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
  EXPECT_NE(end.err.find("starting 2 worker(s) again"), std::string::npos) << end.err;
}

TEST_F(ElasticNodes, NodeZeroMayBeStartedAgainToo) {
  constexpr int kSteps = 400;
  const std::string expected = undisturbed(kSteps);
  auto first = node(0, kSteps);
  const auto second = node(1, kSteps);
  wait_for_checkpoint();
  first->signal(SIGKILL);
  first->wait();
  first = node(0, kSteps);
  const Finished end = first->wait(120);
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
  const Finished other = second->wait(60);
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_NE(other.err.find("waiting for node 0's launcher to come back"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace lockstep
