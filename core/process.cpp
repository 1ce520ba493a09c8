#include "lockstep/core/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/posix.h"

namespace lockstep {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// All that the child needs is made before fork(): up to execve() it may call async-signal-safe functions only.
struct Launch {
  const ProcessSpec& spec;
  char** argv;
  char** envp;
  int failed;  // takes errno if the program cannot be executed
  pid_t parent;
  std::unique_lock<std::mutex>& starting;
};

using Clock = std::chrono::steady_clock;

// A process that calls a function has all descriptors of this one. Were another thread's pipe `failed` among them, that
// thread would wait for its end as long as the process lives.
std::mutex one_at_a_time;

/// True if something can be read, or the other side is closed, before `deadline`.
bool wait_to_read(int fd, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted{fd, POLLIN, 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready > 0) return true;
    if (left <= 0 || (ready < 0 && errno != EINTR)) return false;
  }
}

/// Ends a child that has not begun. One that the kernel does not let go, as where a program lies on a file server that
/// does not answer, is left.
void end_unborn(pid_t pid) {
  ::kill(pid, SIGKILL);
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (::waitpid(pid, nullptr, WNOHANG) == 0 && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

[[noreturn]] void become(const Launch& launch) {
  const ProcessSpec& spec = launch.spec;
  if (spec.ends_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != launch.parent) ::_exit(1);  // the parent died before the request took hold
  }
  ::setpgid(0, 0);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGPIPE}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (spec.in >= 0) ::dup2(spec.in, STDIN_FILENO);
  if (spec.out >= 0) ::dup2(spec.out, STDOUT_FILENO);
  if (spec.err >= 0) ::dup2(spec.err, STDERR_FILENO);
  if (spec.inherited >= 0) ::fcntl(spec.inherited, F_SETFD, 0);
  if (spec.function) {
    launch.starting.unlock();  // the function may start processes too
    ::close(launch.failed);
    ::_exit(spec.function());
  }
  ::execve(spec.program.c_str(), launch.argv, launch.envp);
  const int error = errno;
  write_all(launch.failed, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

pid_t start_process(const ProcessSpec& spec) {
  std::vector<char*> argv = pointers(spec.arguments);
  std::vector<char*> envp = pointers(spec.environment);
  std::unique_lock starting(one_at_a_time);
  Pipe failed = make_pipe();
  const Launch launch{spec, argv.data(), envp.data(), failed.write.get(), ::getpid(), starting};

  // No handler of this process may run in the child before execve() has replaced it.
  sigset_t all, previous;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  const pid_t pid = ::fork();
  if (pid == 0) become(launch);
  const int fork_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  LOCKSTEP_CHECK(pid > 0, "a process could not be started: {}{}", std::strerror(fork_error),
                 fork_error == EAGAIN ? "; ask for fewer processes, or raise the limits of the user (ulimit -u) or the "
                                        "container (pids.max)"
                                      : "");

  failed.write.reset();
  starting.unlock();
  if (!wait_to_read(failed.read.get(), Clock::now() + spec.start_timeout)) {
    end_unborn(pid);
    LOCKSTEP_CHECK(false,
                   "process {}, which was to become {}, had not begun after {} ms, though it was started: something "
                   "has stopped it, or the machine is overloaded; it was killed; try again",
                   pid, spec.function ? "a copy of this one" : fmt::format("'{}'", spec.program),
                   spec.start_timeout.count());
  }
  int exec_error = 0;
  if (read_all(failed.read.get(), &exec_error, sizeof exec_error) > 0) {
    ::waitpid(pid, nullptr, 0);
    LOCKSTEP_CHECK(false, "'{}' could not be executed: {}", spec.program, std::strerror(exec_error));
  }
  return pid;
}

}  // namespace lockstep
