#include "lockstep/distributed/launcher/orphan_guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/distributed/launcher/limits.h"

namespace lockstep::launcher {
namespace {

void close_from(int first) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0u, 0u) == 0) return;
#endif
  const long limit = ::sysconf(_SC_OPEN_MAX);
  for (int fd = first; fd < (limit > 0 ? limit : 1024); ++fd) ::close(fd);
}

// Runs in a child that may have been forked from a program with threads: async-signal-safe calls only.
[[noreturn]] void guard(int pipe) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) ::signal(signal, SIG_IGN);
  ::setsid();  // a signal to the launcher's process group must not end the guard with it
  ::prctl(PR_SET_NAME, "lockstep-guard");
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::dup2(pipe, 3);
  close_from(4);

  static pid_t groups[kMaxWorkers];
  int count = 0;
  pid_t message;
  ssize_t size;
  while ((size = ::read(3, &message, sizeof message)) != 0) {
    if (size < 0 && errno == EINTR) continue;
    if (size != static_cast<ssize_t>(sizeof message)) break;
    if (message > 0 && count < kMaxWorkers) groups[count++] = message;
    for (int i = 0; i < count; ++i)
      if (groups[i] == -message) groups[i] = groups[--count];
  }
  for (int i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard() {
  Pipe pipe = make_pipe();
  sigset_t all, previous;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  pid_ = ::fork();
  if (pid_ == 0) guard(pipe.read.get());
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  LOCKSTEP_CHECK(pid_ > 0, "the launcher's guard process could not be started: {}{}", std::strerror(error),
                 error == EAGAIN ? "; raise the limits of the user (ulimit -u) or the container (pids.max)" : "");
  pipe_ = std::move(pipe.write);
}

OrphanGuard::~OrphanGuard() {
  pipe_.reset();
  ::kill(pid_, SIGCONT);  // it cannot end while it is stopped
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void OrphanGuard::send(pid_t message) {
  // Four bytes go into a pipe as one; if the guard was killed there is nobody left to tell.
  sigset_t pipe_signal, previous;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &previous);
  if (!write_all(pipe_.get(), &message, sizeof message)) {
    const timespec now{0, 0};
    ::sigtimedwait(&pipe_signal, nullptr, &now);
  }
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

}  // namespace lockstep::launcher
