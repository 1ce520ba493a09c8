#include "lockstep/distributed/launcher/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::launcher {
namespace {

std::atomic<int> signal_fd{-1};

void on_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe already holds a wake-up; nothing else could be done here about a failed write.
  [[maybe_unused]] const ssize_t written = ::write(signal_fd.load(), &byte, 1);
  errno = saved;
}

/// SIGHUP: nohup; SIGINT: a shell's background, where Ctrl-C is for the program in front; SIGPIPE: a program that looks
/// at errors instead. But a job that a batch system ends by SIGTERM saves what it has, however it was started.
bool stays_ignored(int signal) {
  return signal == SIGHUP || signal == SIGINT || signal == SIGPIPE;
}

}  // namespace

SignalPipe::SignalPipe() : pipe_(make_pipe()) {
  for (const int fd : {pipe_.read.get(), pipe_.write.get()}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  int expected = -1;
  LOCKSTEP_CHECK(signal_fd.compare_exchange_strong(expected, pipe_.write.get()),
                 "two launchers cannot run in one process at the same time");
  sigset_t handled;
  sigemptyset(&handled);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    ::sigaction(kSignals[i], nullptr, &previous_[i]);
    if (stays_ignored(kSignals[i]) && previous_[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
    sigaddset(&handled, kSignals[i]);
  }
  // Whoever started this process may have blocked them, and a mask outlives exec().
  ::pthread_sigmask(SIG_UNBLOCK, &handled, &mask_);
}

SignalPipe::~SignalPipe() {
  ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &previous_[i], nullptr);
  signal_fd.store(-1);
}

std::vector<int> SignalPipe::take() {
  std::vector<int> signals;
  unsigned char bytes[64];
  ssize_t count;
  while ((count = ::read(fd(), bytes, sizeof bytes)) > 0) signals.insert(signals.end(), bytes, bytes + count);
  return signals;
}

const char* signal_name(int signal) {
  static constexpr std::pair<int, const char*> kNames[] = {{SIGHUP, "SIGHUP"},
                                                           {SIGINT, "SIGINT"},
                                                           {SIGQUIT, "SIGQUIT"},
                                                           {SIGILL, "SIGILL"},
                                                           {SIGTRAP, "SIGTRAP"},
                                                           {SIGABRT, "SIGABRT"},
                                                           {SIGBUS, "SIGBUS"},
                                                           {SIGFPE, "SIGFPE"},
                                                           {SIGKILL, "SIGKILL"},
                                                           {SIGUSR1, "SIGUSR1"},
                                                           {SIGSEGV, "SIGSEGV"},
                                                           {SIGUSR2, "SIGUSR2"},
                                                           {SIGPIPE, "SIGPIPE"},
                                                           {SIGALRM, "SIGALRM"},
                                                           {SIGTERM, "SIGTERM"},
                                                           {SIGXCPU, "SIGXCPU"},
                                                           {SIGXFSZ, "SIGXFSZ, a file above the limit (ulimit -f)"},
                                                           {SIGSYS, "SIGSYS"}};
  for (const auto& [number, name] : kNames)
    if (number == signal) return name;
  return "a signal";
}

}  // namespace lockstep::launcher
