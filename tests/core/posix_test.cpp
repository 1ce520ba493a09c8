#include "lockstep/core/posix.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>

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
  EXPECT_TRUE(environment_flag("LOCKSTEP_TEST_VARIABLE"));
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

}  // namespace
}  // namespace lockstep
