#include "launcher_support.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace lockstep::launcher_test {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Process::Process(std::vector<std::string> command, const std::map<std::string, std::string>& environment)
    : started_(now()) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  std::vector<char*> argv;
  for (std::string& text : command) argv.push_back(text.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(argv[0], argv.data());
    ::_exit(126);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

void Process::signal(int signal) {
  ::kill(pid_, signal);
}

bool Process::pump(double seconds) {
  pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if (seconds <= 0 || ::poll(fds, 2, static_cast<int>(seconds * 1000) + 1) <= 0) return false;
  const auto take = [](const pollfd& ready, int& fd, std::string& text) {
    if (!ready.revents) return;
    char buffer[4096];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) {
      text.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      ::close(fd);
      fd = -1;
    }
  };
  take(fds[0], out_, finished_.out);
  take(fds[1], err_, finished_.err);
  return true;
}

bool Process::wait_for_output(const std::string& text, double seconds) {
  const double deadline = now() + seconds;
  while (finished_.out.find(text) == std::string::npos)
    if (out_ < 0 || !pump(deadline - now())) return false;
  return true;
}

Finished Process::wait(double seconds) {
  const double deadline = now() + seconds;
  while (out_ >= 0 || err_ >= 0)
    if (!pump(deadline - now())) break;
  int status = 0;
  pid_t reaped = 0;
  while ((reaped = ::waitpid(pid_, &status, WNOHANG)) == 0 && now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reaped, pid_) << "still running after " << seconds << " s; stderr so far:\n" << finished_.err;
  if (reaped == pid_) {
    pid_ = -1;
    finished_.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  finished_.seconds = now() - started_;
  return finished_;
}

std::vector<std::string> lockstep_run_command(std::vector<std::string> arguments) {
  std::vector<std::string> command(arguments.size() + 1, LOCKSTEP_RUN_PROGRAM);
  std::move(arguments.begin(), arguments.end(), command.begin() + 1);
  return command;
}

Finished lockstep_run(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment) {
  return Process(lockstep_run_command(std::move(arguments)), environment).wait();
}

bool is_running(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const auto paren = text.rfind(')');  // the name before it may hold anything
  return paren != std::string::npos && text.size() > paren + 2 && text[paren + 2] != 'Z' && text[paren + 2] != 'X';
}

bool wait_until_gone(pid_t pid, double seconds) {
  const double deadline = now() + seconds;
  while (is_running(pid)) {
    if (now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<int> numbers_after(const std::string& text, const std::string& key) {
  std::vector<int> numbers;
  for (auto at = text.find(key); at != std::string::npos; at = text.find(key, at + 1))
    numbers.push_back(std::atoi(text.c_str() + at + key.size()));
  return numbers;
}

::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in:\n" << text;
}

}  // namespace lockstep::launcher_test
