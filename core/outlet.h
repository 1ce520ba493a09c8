#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/core/posix.h"

namespace lockstep {

/// Note [Slow readers]
/// stdout or stderr of a process that others wait for: a launcher, which looks after workers, or rank 0 of a training.
/// Whoever reads it may stand still (a pager, a terminal that was stopped, or whose connection is gone); the process
/// must not. So what is not taken at once is kept, and written later.
///
/// A reader that is slow holds a launcher's workers up, as any pipe does, and gets all they print. One that has stood
/// still for kPause does not: a worker that waits for it would look to the other ranks as one that hangs, and the
/// training would end at their deadline. From then on the workers go on, and of more than kLongest the oldest lines are
/// dropped; how many they were stands in their place.
///
/// The descriptor is left as it is: O_NONBLOCK would be seen by every process that shares it. A pipe that is ready
/// takes PIPE_BUF bytes at once. A terminal may take a part and wait with the rest, so it is opened once more, without
/// waits.
class Outlet {
 public:
  explicit Outlet(int fd);
  ~Outlet() { flush(); }
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  /// Keeps `text`, whole lines, and writes what is taken without waiting.
  void write(std::string_view text);
  /// Writes what is taken without waiting.
  void flush();
  /// Waits until all is taken, or cannot be. `for_ever` false: or until the reader stands still.
  void drain(bool for_ever = true);
  int fd() const { return fd_; }
  /// A pipe or a connection, whose reader can hold up whoever writes to it.
  bool has_reader() const;
  /// Why some of what it was given is lost: an errno; 0: nothing is, or nobody reads it (EPIPE).
  int error() const { return error_; }
  bool abandoned() const { return abandoned_; }  ///< by its readers
  std::size_t lines() const { return lines_; }   ///< that write() was given so far
  bool empty() const { return kept_.size() == written_; }
  /// So much is kept that workers should rather wait than give more; not while the reader stands still, unless it is
  /// more than what lines make, of which the oldest are dropped.
  bool full() const {
    const std::size_t waits = kept_.size() - written_;
    return waits > kMostKept && (!stands_still() || waits > 2 * kLongest);
  }
  /// Something has waited for kPause, and nothing was taken since.
  bool stands_still() const { return !empty() && std::chrono::steady_clock::now() - taken_ > kPause; }

 private:
  static constexpr std::size_t kMostKept = std::size_t{1} << 20;
  static constexpr std::size_t kLongest = std::size_t{16} << 20;
  static constexpr std::chrono::milliseconds kPause{1000};

  void drop_oldest();
  void tell_of_dropped();  // in the place of what is missing

  int fd_;
  FileDescriptor terminal_;  // fd_ without waits, if it is one that may be opened
  std::string kept_;
  std::size_t written_ = 0;  // of kept_
  std::size_t lines_ = 0;
  std::size_t dropped_ = 0;  // lines that are missing before byte gap_ of kept_
  std::size_t gap_ = 0;
  bool at_line_start_ = true;                      // the last byte that was written is the end of a line
  std::chrono::steady_clock::time_point taken_{};  // when the reader last took something, or nothing waited
  int error_ = 0;
  bool abandoned_ = false;
};

}  // namespace lockstep
