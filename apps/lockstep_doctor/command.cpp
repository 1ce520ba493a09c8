#include "apps/lockstep_doctor/command.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/posix.h"
#include "lockstep/core/process.h"
#include "lockstep/distributed/launcher/environment.h"

namespace lockstep::doctor {
namespace {

constexpr std::size_t kMaxOutput = 64 << 10;

}  // namespace

CommandResult run_command(const std::vector<std::string>& command, const Environment& environment,
                          std::chrono::milliseconds timeout) {
  const Deadline deadline = deadline_in(timeout);
  Environment variables = current_environment();
  for (const auto& [name, value] : environment) variables[name] = value;
  Pipe output = make_pipe();
  CommandResult result;
  pid_t child = -1;
  try {
    child = start_process({.program = launcher::find_program(command.front()),
                           .arguments = command,
                           .environment = launcher::to_strings(variables),
                           .out = output.write.get(),
                           .err = output.write.get()});
  } catch (const Error& error) {
    result.status = kNoSuchProgram;
    result.output = error.what();
    return result;
  }
  output.write.reset();
  for (;;) {
    pollfd entry{output.read.get(), POLLIN, 0};
    const auto left = static_cast<int>(time_left(deadline).count());
    if (left == 0 || ::poll(&entry, 1, left) == 0) break;
    std::array<char, 4096> buffer;
    const ssize_t size = ::read(output.read.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    result.output.append(buffer.data(), std::min(static_cast<std::size_t>(size), kMaxOutput - result.output.size()));
  }
  if (has_passed(deadline)) {
    ::kill(-child, SIGKILL);
    result.output += fmt::format(" {} did not end within {} ms", command.front(), timeout.count());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace lockstep::doctor
