#pragma once

// For .cpp files only.

#include <csignal>

namespace lockstep::training {

/// While it lives, SIGTERM does not end the process: came() tells of it, once all else is in order. Another one
/// within 2 s is the same request, which has reached the process by two ways; a later one ends the process as ever. One
/// at a time in a process; the handler that was there before comes back with the destructor.
class StopSignal {
 public:
  /// `active` off: changes nothing, and came() is false.
  explicit StopSignal(bool active);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool came() const;

 private:
  bool active_;
  struct sigaction before_ {};
};

}  // namespace lockstep::training
