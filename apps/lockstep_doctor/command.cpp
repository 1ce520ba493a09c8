#include "apps/lockstep_doctor/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/distributed/store/socket.h"

namespace lockstep::doctor {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMaxOutput = 64 << 10;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& command, const Environment& environment,
                          std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::array<int, 2> ends{};
  LOCKSTEP_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "[doctor] no pipe: {}", std::strerror(errno));
  const distributed::FileDescriptor output(ends[0]);
  distributed::FileDescriptor input(ends[1]);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  LOCKSTEP_CHECK(child >= 0, "[doctor] no process can be started: {}", std::strerror(errno));
  if (child == 0) {
    ::setpgid(0, 0);
    ::dup2(input.get(), STDOUT_FILENO);
    ::dup2(input.get(), STDERR_FILENO);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execvp(arguments[0], arguments.data());
    ::_exit(kNoSuchProgram);
  }
  input = {};
  CommandResult result;
  for (;;) {
    pollfd entry{output.get(), POLLIN, 0};
    const int left = milliseconds_until(deadline);
    if (left == 0 || ::poll(&entry, 1, left) == 0) break;
    std::array<char, 4096> buffer;
    const ssize_t size = ::read(output.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    result.output.append(buffer.data(), std::min(static_cast<std::size_t>(size), kMaxOutput - result.output.size()));
  }
  if (milliseconds_until(deadline) == 0) {
    ::kill(-child, SIGKILL);
    result.output += fmt::format(" {} did not end within {} ms", command.front(), timeout.count());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace lockstep::doctor
