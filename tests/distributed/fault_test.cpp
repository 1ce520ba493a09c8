// What the survivors do when a rank dies, stops, is late or calls something else. Real processes, real signals.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "distributed/gloo/gloo.h"
#include "distributed/store/socket.h"
#include "distributed/store/tcp_store_server.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

using std::chrono::steady_clock;
using testing::TemporaryPath;

constexpr Milliseconds kTimeout{4'000};

/// A running fault_worker. Killed and reaped with the object, if it has not ended before.
class Worker {
 public:
  Worker(const std::string& url, int rank, int world_size, const std::string& scenario, int faulty,
         const std::string& backend) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_ = FileDescriptor(ends[0]);
    const FileDescriptor write_end(ends[1]);
    const std::vector<std::string> words = {LOCKSTEP_FAULT_WORKER,
                                            url,
                                            std::to_string(rank),
                                            std::to_string(world_size),
                                            std::to_string(kTimeout.count()),
                                            scenario,
                                            std::to_string(faulty),
                                            backend};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = fork();
    EXPECT_GE(pid_, 0);
    if (pid_ == 0) {
      dup2(write_end.get(), STDOUT_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Worker() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void signal(int number) { EXPECT_EQ(kill(pid_, number), 0); }

  /// The rest of a line that starts with `word`; empty if the process ends, or the time passes, before it prints one.
  std::string line(const std::string& word, Milliseconds timeout) {
    const auto deadline = steady_clock::now() + timeout;
    for (;;) {
      for (std::size_t end; (end = text_.find('\n')) != std::string::npos;) {
        const std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        if (line.starts_with(word)) return line.substr(std::min(line.size(), word.size() + 1));
      }
      const auto left = std::chrono::ceil<Milliseconds>(deadline - steady_clock::now()).count();
      pollfd entry{output_.get(), POLLIN, 0};
      char buffer[4096];
      if (left <= 0 || poll(&entry, 1, static_cast<int>(left)) <= 0) return {};
      const ssize_t n = read(output_.get(), buffer, sizeof(buffer));
      if (n <= 0) return {};
      text_.append(buffer, static_cast<std::size_t>(n));
    }
  }

  /// The exit status, or -1 if it does not end in time or by a signal.
  int status(Milliseconds timeout) {
    const auto deadline = steady_clock::now() + timeout;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (steady_clock::now() >= deadline) return -1;
      std::this_thread::sleep_for(Milliseconds(5));
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor output_;
  std::string text_;
};

struct Fault {
  const char* name;
  const char* scenario;
  int faulty;
  int signal;  ///< sent to the faulty rank once all are at work; 0 for none
  const char* expected;
  const char* also_expected;
};

/// A backend, and what goes wrong on it.
class FaultTest : public ::testing::TestWithParam<std::tuple<const char*, Fault>> {
 protected:
  void SetUp() override {
    if (backend() == "gloo" && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  static std::string backend() { return std::get<0>(GetParam()); }
  /// Runs three workers into the fault and checks what the survivors say, and when.
  void run(const std::string& url) {
    const Fault& fault = std::get<1>(GetParam());
    constexpr int kWorld = 3;
    std::vector<std::unique_ptr<Worker>> workers;
    for (int r = 0; r < kWorld; ++r)
      workers.push_back(std::make_unique<Worker>(url, r, kWorld, fault.scenario, fault.faulty, backend()));
    for (auto& worker : workers)
      ASSERT_EQ(worker->line("ready", kTimeout * 2), "3") << "the ranks did not come together";
    Worker& faulty = *workers[static_cast<std::size_t>(fault.faulty)];
    if (fault.signal != 0) {
      std::this_thread::sleep_for(kTimeout / 4);  // longer than the peer monitor's interval
      faulty.signal(fault.signal);
    }
    for (int r = 0; r < kWorld; ++r) {
      if (r == fault.faulty) continue;
      Worker& worker = *workers[static_cast<std::size_t>(r)];
      const std::string took = worker.line("took", kTimeout * 2 + Milliseconds(1'000));
      ASSERT_FALSE(took.empty()) << "rank " << r << " said nothing within twice the deadline";
      EXPECT_LE(std::stoll(took), 2 * kTimeout.count()) << "rank " << r;
      const std::string error = worker.line("error", Milliseconds(10'000));
      EXPECT_NE(error.find("[Rank " + std::to_string(r) + "]"), std::string::npos) << error;
      EXPECT_NE(error.find("all_reduce #"), std::string::npos) << error;
      EXPECT_NE(error.find(fault.expected), std::string::npos) << error;
      EXPECT_NE(error.find(fault.also_expected), std::string::npos) << error;
      // Rank 0 may hold the store, and waits a while for the others to let go of it.
      EXPECT_EQ(worker.status(Milliseconds(15'000)), 3) << error;
    }
  }
};

std::string name_of(const ::testing::TestParamInfo<std::tuple<const char*, Fault>>& info) {
  return std::string(std::get<1>(info.param).name) + "_" + std::get<0>(info.param);
}

// "auto" is shared memory here, as all ranks are on this machine.
const auto kBackends = ::testing::Values("auto", "gloo");

INSTANTIATE_TEST_SUITE_P(
    All, FaultTest,
    ::testing::Combine(
        kBackends,
        ::testing::Values(
            Fault{"Killed", "hang", 1, SIGKILL, "Missing: rank 1 (last seen", "after all_reduce #0 (float32 [1], sum)"},
            Fault{"KilledInATransfer", "large", 2, SIGKILL, "Missing: rank 2 (last seen", "all_reduce #"},
            Fault{"Stopped", "hang", 1, SIGSTOP, "Missing: rank 1 (last seen",
                  "after all_reduce #0 (float32 [1], sum)"},
            Fault{"Late", "late", 2, 0, "rank 2 (last seen", "Alive, but not there"},
            Fault{"Left", "leave", 1, 0, "rank 1 (left the group", "rank 1 has left the group without calling it"},
            Fault{"Threw", "throw", 1, 0, "rank 1 (left the group", "rank 1 has left the group without calling it"},
            Fault{"OtherOperation", "operation", 1, 0, "mismatched collectives",
                  "rank 1 called broadcast #1 (float32 [1024], root 0)"},
            Fault{"OtherShape", "shape", 1, 0, "mismatched collectives",
                  "rank 1 called all_reduce #1 (float32 [7], sum)"},
            Fault{"OtherDtype", "dtype", 2, 0, "mismatched collectives",
                  "rank 2 called all_reduce #1 (float64 [1024], sum)"},
            Fault{"OtherReduction", "reduction", 2, 0, "mismatched collectives",
                  "all_reduce #1 (float32 [1024], max)"})),
    name_of);

TEST_P(FaultTest, SurvivorsNameItAndEnd) {
  // As under lockstep-run: the store outlives every rank.
  TCPStoreServer server;
  setenv("LOCKSTEP_STORE_HOSTED", "1", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(server.port()).c_str(), 1);
  run("env://");
  for (const char* name : {"LOCKSTEP_STORE_HOSTED", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
}

class StoreHolderFaultTest : public FaultTest {};

INSTANTIATE_TEST_SUITE_P(
    All, StoreHolderFaultTest,
    ::testing::Combine(kBackends,
                       ::testing::Values(Fault{"Killed", "hang", 0, SIGKILL, "rank 0", "store does not answer"},
                                         Fault{"Stopped", "hang", 0, SIGSTOP, "rank 0", "store does not answer"})),
    name_of);

TEST_P(StoreHolderFaultTest, SurvivorsEndEvenWithoutTheStore) {
  const int port = bound_port(listen_on("127.0.0.1", 0).get());
  run("tcp://127.0.0.1:" + std::to_string(port));
}

class FileFaultTest : public FaultTest {};

INSTANTIATE_TEST_SUITE_P(
    All, FileFaultTest,
    ::testing::Combine(kBackends, ::testing::Values(Fault{"Killed", "hang", 1, SIGKILL, "Missing: rank 1 (last seen",
                                                          "after all_reduce #0 (float32 [1], sum)"},
                                                    Fault{"OtherShape", "shape", 1, 0, "mismatched collectives",
                                                          "rank 1 called all_reduce #1 (float32 [7], sum)"})),
    name_of);

TEST_P(FileFaultTest, SurvivorsNameItAndEnd) {
  const TemporaryPath path;
  run("file://" + path.text());
}

}  // namespace
}  // namespace lockstep::distributed
