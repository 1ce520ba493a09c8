#include "lockstep/core/posix.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/core/process.h"

namespace lockstep {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(FileDescriptor, ClosesWhatItHoldsOnceAndLeavesErrno) {
  Pipe pipe = make_pipe();
  const int read = pipe.read.get(), write = pipe.write.get();
  errno = EAGAIN;
  pipe.read = std::move(pipe.write);  // closes the old one at once
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(is_open(read));
  EXPECT_TRUE(is_open(write));
  EXPECT_FALSE(pipe.write);
  const FileDescriptor again(pipe.read.release());
  EXPECT_FALSE(pipe.read);
  EXPECT_TRUE(is_open(again.get()));
}

TEST(FileDescriptor, APipeIsNotInherited) {
  const Pipe pipe = make_pipe();
  EXPECT_EQ(::fcntl(pipe.read.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(::fcntl(pipe.write.get(), F_GETFD), FD_CLOEXEC);
}

TEST(ReadAll, CollectsPartsUntilTheEnd) {
  Pipe pipe = make_pipe();
  std::thread writer([&] {
    for (const char* part : {"one ", "two ", "three"}) {
      write_all(pipe.write.get(), part, std::string(part).size());
      std::this_thread::yield();
    }
    pipe.write.reset();
  });
  std::array<char, 32> text{};
  EXPECT_EQ(read_all(pipe.read.get(), text.data(), 4), 4);
  EXPECT_EQ(read_all(pipe.read.get(), text.data() + 4, 28), 9);
  writer.join();
  EXPECT_STREQ(text.data(), "one two three");
  EXPECT_EQ(read_all(-1, text.data(), 1), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(WriteAll, WaitsForAReaderWhereTheDescriptorDoesNotBlock) {
  Pipe pipe = make_pipe(O_NONBLOCK);
  ::fcntl(pipe.read.get(), F_SETFL, 0);
  const std::string sent(1 << 20, 'x');  // more than a pipe holds
  std::string got(sent.size(), ' ');
  std::thread reader([&] { read_all(pipe.read.get(), got.data(), got.size()); });
  EXPECT_TRUE(write_all(pipe.write.get(), sent.data(), sent.size()));
  reader.join();
  EXPECT_EQ(got, sent);
}

TEST(ParseNumber, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number<int>("-17"), -17);
  EXPECT_EQ(parse_number<double>("2.5e3"), 2500.0);
  for (const char* text : {"", " 1", "1 ", "1x", "+1", "99999999999", "1.5"})
    EXPECT_FALSE(parse_number<int>(text)) << text;
}

TEST(Environment, NothingIsAsUnset) {
  ::setenv("LOCKSTEP_TEST_VARIABLE", "", 1);
  EXPECT_FALSE(environment_variable("LOCKSTEP_TEST_VARIABLE"));
  EXPECT_FALSE(environment_flag("LOCKSTEP_TEST_VARIABLE"));
  ::setenv("LOCKSTEP_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(environment_variable("LOCKSTEP_TEST_VARIABLE"), "a=b");
  EXPECT_EQ(current_environment()["LOCKSTEP_TEST_VARIABLE"], "a=b");
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(environment_flag("LOCKSTEP_TEST_VARIABLE"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: LOCKSTEP_TEST_VARIABLE='a=b' counts as 1: expected 0 or 1\n");
  ::unsetenv("LOCKSTEP_TEST_VARIABLE");
}

TEST(StartProcess, RunsAProgramWithItsDescriptorsAndEnvironment) {
  Pipe out = make_pipe();
  const pid_t pid = start_process({.program = "/bin/sh",
                                   .arguments = {"sh", "-c", "echo $A; exit 3"},
                                   .environment = {"A=b"},
                                   .out = out.write.get()});
  out.write.reset();
  std::array<char, 8> text{};
  EXPECT_EQ(read_all(out.read.get(), text.data(), text.size()), 2);
  EXPECT_STREQ(text.data(), "b\n");
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(StartProcess, NamesAProgramThatCannotBeExecuted) {
  try {
    start_process({.program = "/no/such/program", .arguments = {"program"}});
    FAIL() << "it was executed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "'/no/such/program' could not be executed: No such file or directory");
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left over";
}

std::atomic<bool> stops_children{false};

TEST(StartProcess, DoesNotWaitForOneThatIsStoppedBeforeItBegins) {
  ::pthread_atfork(nullptr, nullptr, [] {
    if (stops_children) ::raise(SIGSTOP);
  });
  stops_children = true;
  const auto start = std::chrono::steady_clock::now();
  for (const bool function : {false, true}) {
    try {
      start_process({.program = function ? "" : "/bin/true",
                     .arguments = {"true"},
                     .function = function ? [] { return 0; } : std::function<int()>(),
                     .start_timeout = std::chrono::milliseconds(200)});
      ADD_FAILURE() << "it began";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("had not begun after 200 ms"), std::string::npos) << error.what();
    }
  }
  stops_children = false;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left over";
}

TEST(StartProcess, DoesNotWaitForTheProcessOfAnotherThread) {
  constexpr int kThreads = 4, kTurns = 10;
  std::mutex mutex;
  std::vector<pid_t> children;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const pid_t child = start_process({.function = [] { return ::pause(); }});
        const std::lock_guard lock(mutex);
        children.push_back(child);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50));
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }
}

}  // namespace
}  // namespace lockstep
