#pragma once

// For .cpp files only.

#include <csignal>

namespace lockstep::training {

/// While it lives, SIGTERM does not end the process: came() tells of it, once all else is in order. Another one
/// within 2 s is the same request, which has reached the process by two ways; a later one ends the process as ever.
/// SIGPIPE, where it is not ignored, is such a request, too, if stdout is the pipe that nobody reads: `run | head -1`,
/// say. It may come again; that of another pipe, of a callback's say, changes nothing. One at a time in a process; the
/// handlers that were there before come back with the destructor. Where SIGTERM is blocked it is let through meanwhile;
/// a child that the program forks ends by it as ever.
class StopSignal {
 public:
  /// `active` off: changes nothing, and came() is false.
  explicit StopSignal(bool active);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool came() const { return number() != 0; }
  int number() const;  ///< of the signal that came first; 0: none

 private:
  bool active_;
  bool watches_pipe_ = false;
  sigset_t mask_before_{};
  struct sigaction before_ {};
  struct sigaction before_of_pipe_ {};
};

}  // namespace lockstep::training
