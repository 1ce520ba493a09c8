#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/distributed/launcher/signals.h"

namespace lockstep::launcher {

/// One of the launcher's own streams, which workers' lines and messages go to. Whoever reads it may stand still (a
/// pager, a terminal that was stopped); the launcher must not, since it looks after the workers. So what is not taken
/// at once is kept, and written later.
///
/// The descriptor is left as it is: O_NONBLOCK would be seen by every process that shares it.
class Outlet {
 public:
  explicit Outlet(int fd) : fd_(fd) {}
  ~Outlet() { flush(); }
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  /// Keeps `text`, whole lines, and writes what is taken without waiting.
  void write(std::string_view text);
  /// Writes what is taken without waiting.
  void flush();
  int fd() const { return fd_; }
  /// Why some of what it was given is lost: an errno; 0: nothing is, or nobody reads it (EPIPE).
  int error() const { return error_; }
  std::size_t lines() const { return lines_; }  ///< that write() was given so far
  bool empty() const { return kept_.size() == written_; }
  /// So much is kept that workers should rather wait than give more.
  bool full() const { return kept_.size() - written_ > kMostKept; }

 private:
  static constexpr std::size_t kMostKept = std::size_t{1} << 20;

  int fd_;
  std::string kept_;
  std::size_t written_ = 0;  // of kept_
  std::size_t lines_ = 0;
  int error_ = 0;
  bool abandoned_ = false;  // by its readers
};

/// The launcher's stdout and stderr.
struct Outlets {
  Outlet out{1};
  Outlet err{2};

  /// Waits until everything has been taken, as a program does that writes to a pipe; or until a signal comes.
  void drain(SignalPipe& signals);
};

}  // namespace lockstep::launcher
