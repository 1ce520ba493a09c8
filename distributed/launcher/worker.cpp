#include "lockstep/distributed/launcher/worker.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/core/check.h"

namespace lockstep::launcher {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Everything the child needs, made before fork(): up to execve() it may call async-signal-safe functions only.
struct Launch {
  const std::function<int()>& function;
  const char* program;
  char** argv;
  char** envp;
  int in;
  int out;  // -1: keep the launcher's
  int err;
  int inherited;
  int failed;  // takes errno if the program cannot be executed
  pid_t parent;
};

[[noreturn]] void become_worker(const Launch& launch) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launch.parent) ::_exit(1);  // the launcher died before the request took hold
  ::setpgid(0, 0);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGPIPE}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(launch.in, 0);
  if (launch.out >= 0) ::dup2(launch.out, 1);
  ::dup2(launch.err, 2);
  if (launch.inherited >= 0) ::fcntl(launch.inherited, F_SETFD, 0);
  if (launch.function) {
    ::close(launch.failed);
    ::_exit(launch.function());
  }
  ::execve(launch.program, launch.argv, launch.envp);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(launch.failed, &error, sizeof error);
  ::_exit(127);
}

struct Started {
  pid_t pid;
  Pipe out;
  Pipe err;
};

Started start(const WorkerSpec& spec) {
  Started started{-1, spec.inherit_stdout ? Pipe() : make_pipe(), make_pipe()};
  Pipe failed = make_pipe();
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<char*> argv = pointers(spec.arguments);
  std::vector<char*> envp = pointers(spec.environment);
  const Launch launch{spec.function,           spec.program.c_str(),    argv.data(),    envp.data(),        null.get(),
                      started.out.write.get(), started.err.write.get(), spec.inherited, failed.write.get(), ::getpid()};

  // No handler of ours may run in the child before execve() has replaced it.
  sigset_t all, previous;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  started.pid = ::fork();
  if (started.pid == 0) become_worker(launch);
  const int fork_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  LOCKSTEP_CHECK(started.pid > 0, "the process of rank {} could not be started: {}", spec.rank,
                 std::strerror(fork_error));

  failed.write.reset();
  int exec_error = 0;
  ssize_t size;
  while ((size = ::read(failed.read.get(), &exec_error, sizeof exec_error)) < 0 && errno == EINTR) {
  }
  if (size > 0) {
    ::waitpid(started.pid, nullptr, 0);
    LOCKSTEP_CHECK(false, "'{}' could not be executed: {}", spec.program, std::strerror(exec_error));
  }
  started.out.write.reset();
  started.err.write.reset();
  for (const UniqueFd* fd : {&started.out.read, &started.err.read})
    if (*fd) ::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
  return started;
}

}  // namespace

Worker::Worker(const WorkerSpec& spec, Outlets& outlets)
    : rank_(spec.rank),
      pid_(-1),
      out_(UniqueFd(), outlets.out, "", UniqueFd(), false),
      err_(UniqueFd(), outlets.err, "", UniqueFd(), false) {
  UniqueFd out_log = open_log(spec.stdout_log, spec.truncate_logs);
  UniqueFd err_log = open_log(spec.stderr_log, spec.truncate_logs);
  Started started = start(spec);
  pid_ = started.pid;
  out_ = Stream(std::move(started.out.read), outlets.out, spec.prefix, std::move(out_log), false);
  err_ = Stream(std::move(started.err.read), outlets.err, spec.prefix, std::move(err_log), true);
}

bool Worker::has_ended() const {
  siginfo_t info{};
  return alive() && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

void Worker::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  Ending ending;
  ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending.exit_status = ending.signal ? 128 + ending.signal : WEXITSTATUS(status);
  ending_ = ending;
}

void Worker::signal(int signal) {
  if (alive()) ::kill(-pid_, signal);
}

}  // namespace lockstep::launcher
