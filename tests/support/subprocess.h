#pragma once

// Running programs in tests, with a wall-clock limit.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::testing {

struct ProcessResult {
  int status = -1;  ///< exit status; 128 + N for signal N
  bool timed_out = false;
  std::string out;
  std::string err;
};

/// Variables to set for the program; an empty value removes one.
using ProcessEnvironment = std::vector<std::pair<std::string, std::string>>;

/// Runs `command` to its end, or kills its process group at the limit.
inline ProcessResult run_process(const std::vector<std::string>& command, const ProcessEnvironment& environment = {},
                                 std::chrono::seconds limit = std::chrono::seconds(120)) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) std::abort();
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const auto& [name, value] : environment)
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  setpgid(pid, pid);
  close(out[1]);
  close(err[1]);

  ProcessResult result;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::array<pollfd, 2> streams{pollfd{out[0], POLLIN, 0}, pollfd{err[0], POLLIN, 0}};
  while (streams[0].fd >= 0 || streams[1].fd >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) {
      result.timed_out = true;
      kill(-pid, SIGKILL);
      break;
    }
    if (poll(streams.data(), streams.size(), static_cast<int>(left)) <= 0) continue;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].fd < 0 || streams[i].revents == 0) continue;
      std::array<char, 4096> chunk;
      const ssize_t n = read(streams[i].fd, chunk.data(), chunk.size());
      if (n > 0) {
        (i == 0 ? result.out : result.err).append(chunk.data(), static_cast<std::size_t>(n));
      } else if (n == 0) {
        streams[i].fd = -1;
      }
    }
  }
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace lockstep::testing
