// What the ranks of spawn() print, where nobody takes it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "lockstep/core/error.h"
#include "lockstep/distributed/launcher/spawn.h"

namespace lockstep {
namespace {

constexpr int kToldOfSpace = 28;

/// A process whose stdout is `out`, and in which spawn() has two ranks print.
class SpawnOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    void* memory = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    printed_ = new (memory) std::atomic<int>(0);
  }
  void TearDown() override { munmap(printed_, sizeof(std::atomic<int>)); }

  void start(int out, int lines, launcher::Output output) {
    fflush(nullptr);
    process_ = fork();
    if (process_ != 0) return;
    dup2(out, STDOUT_FILENO);
    const auto print = [&](int rank) {
      for (int i = 0; i < lines; ++i) std::printf("rank %d, line %d\n", rank, i);
      ++*printed_;
    };
    try {
      launcher::spawn(print, 2, {.output = output});
    } catch (const Error& error) {
      const bool told = std::string(error.what()).find("No space left on device") != std::string::npos;
      _exit(told ? kToldOfSpace : 1);
    }
    _exit(0);
  }
  /// As a shell has it.
  int status() const {
    int status = 0;
    EXPECT_EQ(waitpid(process_, &status, 0), process_);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  std::atomic<int>* printed_ = nullptr;  // by so many ranks
  pid_t process_ = -1;
};

TEST_F(SpawnOutput, ASignalThatGivesUpTheLastLinesIsRaisedAgain) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  start(ends[1], 10'000, launcher::Output::rank0_plain);
  const auto wait = [](int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); };
  for (int i = 0; i < 1000 && *printed_ < 2; ++i) wait(20);
  wait(500);  // the ranks have ended, and their lines wait for a reader
  kill(process_, SIGTERM);
  wait(500);
  close(ends[0]);  // a launcher that still waits finds that there is none
  EXPECT_EQ(status(), 128 + SIGTERM);
  close(ends[1]);
}

TEST_F(SpawnOutput, ThatCannotBeWrittenIsAnError) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  for (const launcher::Output output : {launcher::Output::rank0_plain, launcher::Output::prefixed}) {
    start(full, 10, output);
    EXPECT_EQ(status(), kToldOfSpace);
  }
  close(full);
}

}  // namespace
}  // namespace lockstep
