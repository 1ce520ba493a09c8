#include "lockstep/train/stop_signal.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

namespace lockstep::training {
namespace {

// A batch system sends SIGTERM to every process of a job, and so does the launcher, which has got it as well: what
// comes within this time is the same request.
constexpr std::int64_t kOneRequest = 2'000;  // milliseconds
constexpr std::int64_t kNever = -1;

std::atomic<std::int64_t> asked_at{kNever};
std::atomic<int> asked_by{0};  // a signal's number
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler uses it");

std::int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Whether stdout is a pipe or a connection that nobody reads any more; in a signal handler.
bool stdout_is_broken() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

pid_t owner = 0;  // the process whose training is stopped; a child that it forks has none

/// SIGTERM alone.
sigset_t stop_set() {
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTERM);
  return stop;
}

void note_stop(int signal) {
  const int saved = errno;
  if (::getpid() != owner) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    errno = saved;
    return;
  }
  // Of any other pipe that is broken whoever writes to it has an error (EPIPE).
  const bool asks = signal != SIGPIPE || stdout_is_broken();
  if (int none = 0; asks) asked_by.compare_exchange_strong(none, signal);
  std::int64_t first = kNever;
  if (signal == SIGPIPE) {
    // A reader that is gone stays so, and says it with every line.
  } else if (const std::int64_t now = now_ms();
             !asked_at.compare_exchange_strong(first, now) && now - first > kOneRequest) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // takes effect when this handler has returned
  }
  errno = saved;
}

}  // namespace

StopSignal::StopSignal(bool active) : active_(active) {
  if (!active_) return;
  asked_at = kNever;
  asked_by = 0;
  owner = ::getpid();
  struct sigaction action {};
  action.sa_handler = note_stop;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, &before_);
  // Who starts a program may have it blocked, which programs inherit.
  const sigset_t stop = stop_set();
  ::pthread_sigmask(SIG_UNBLOCK, &stop, &mask_before_);
  ::sigaction(SIGPIPE, nullptr, &before_of_pipe_);
  watches_pipe_ = before_of_pipe_.sa_handler != SIG_IGN;
  if (watches_pipe_) ::sigaction(SIGPIPE, &action, nullptr);
}

StopSignal::~StopSignal() {
  if (active_) ::sigaction(SIGTERM, &before_, nullptr);
  if (active_ && ::sigismember(&mask_before_, SIGTERM) == 1) {
    const sigset_t stop = stop_set();
    ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  }
  if (watches_pipe_) ::sigaction(SIGPIPE, &before_of_pipe_, nullptr);
}

int StopSignal::number() const {
  return active_ ? asked_by.load() : 0;
}

}  // namespace lockstep::training
