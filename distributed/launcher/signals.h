#pragma once

#include <array>
#include <csignal>
#include <vector>

#include "lockstep/core/posix.h"

namespace lockstep::launcher {

/// While it lives, SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD and SIGUSR1 arrive as bytes in a pipe, which poll() can
/// watch, also where they were blocked. One at a time in a process. SIGHUP, SIGINT and SIGPIPE stay ignored if they
/// were (nohup, a shell's background), as does SIGQUIT, which is left alone. The destructor, in the constructor's
/// thread, puts the previous handlers and mask back.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  /// Readable when a signal has come.
  int fd() const { return pipe_.read.get(); }
  /// The signals that came since the last call, in order of arrival.
  std::vector<int> take();

 private:
  static constexpr std::array<int, 6> kSignals{SIGCHLD, SIGUSR1, SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  Pipe pipe_;
  std::array<struct sigaction, kSignals.size()> previous_{};
  sigset_t mask_{};  // that this thread had
};

/// True of the signals of a SignalPipe that ask a program to end.
constexpr bool asks_to_end(int signal) {
  return signal != SIGCHLD && signal != SIGUSR1;
}

/// "SIGTERM"; "a signal" for one without a well-known name.
const char* signal_name(int signal);

}  // namespace lockstep::launcher
