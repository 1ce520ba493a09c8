#include "lockstep/core/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

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
};

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
  Pipe failed = make_pipe();
  std::vector<char*> argv = pointers(spec.arguments);
  std::vector<char*> envp = pointers(spec.environment);
  const Launch launch{spec, argv.data(), envp.data(), failed.write.get(), ::getpid()};

  // No handler of this process may run in the child before execve() has replaced it.
  sigset_t all, previous;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  const pid_t pid = ::fork();
  if (pid == 0) become(launch);
  const int fork_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  LOCKSTEP_CHECK(pid > 0, "a process could not be started: {}", std::strerror(fork_error));

  failed.write.reset();
  int exec_error = 0;
  if (read_all(failed.read.get(), &exec_error, sizeof exec_error) > 0) {
    ::waitpid(pid, nullptr, 0);
    LOCKSTEP_CHECK(false, "'{}' could not be executed: {}", spec.program, std::strerror(exec_error));
  }
  return pid;
}

}  // namespace lockstep
