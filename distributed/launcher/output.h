#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "lockstep/core/outlet.h"
#include "lockstep/core/posix.h"
#include "lockstep/distributed/launcher/signals.h"

namespace lockstep::launcher {

/// The launcher's stdout and stderr.
struct Outlets {
  Outlet out{1};
  Outlet err{2};

  /// Waits until everything has been taken, as a program does that writes to a pipe, and returns 0; or until a signal
  /// comes that asks for the end, and returns that: what is left then is lost. Says once, with `name` in front, what it
  /// waits for.
  int drain(SignalPipe& signals, const std::string& name);
};

/// One stream of one worker: cuts what comes through a pipe into lines and passes each whole to an outlet, with a
/// prefix, so that lines of different workers never mix. Optionally copies the raw bytes to a file and keeps the last
/// lines. Without a prefix it passes stdout on as it comes, unfinished lines too.
class Stream {
 public:
  /// `copy`: holds nothing if there is none.
  Stream(FileDescriptor source, Outlet& target, std::string prefix, FileDescriptor copy, bool keep_lines)
      : source_(std::move(source)),
        target_(&target),
        prefix_(std::move(prefix)),
        copy_(std::move(copy)),
        keep_lines_(keep_lines) {}

  /// -1 once the stream has ended.
  int fd() const { return source_.get(); }
  const Outlet& target() const { return *target_; }
  /// Passes on what can be read now without waiting. Call when fd() is readable.
  void pump();
  /// Passes on what is left of an unfinished line and closes the source.
  void finish();
  /// Why the copy is not whole; empty if it is, or there is none.
  const std::string& copy_error() const { return copy_error_; }
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  /// Lines that the outlet has been given by others since the last one of this stream.
  std::size_t lines_since() const { return target_->lines() - lines_at_; }

 private:
  void emit(std::string_view line);

  FileDescriptor source_;
  Outlet* target_;
  std::string prefix_;
  FileDescriptor copy_;
  bool keep_lines_;
  std::string partial_;
  std::string copy_error_;
  std::deque<std::string> last_lines_;
  std::size_t lines_at_ = 0;  // of target_, after the last one
};

/// Opens `path` for appending, emptied first if `truncate`; -1 inside if `path` is empty. While it is open no other job
/// can open it so. Throws Error if one has, and for what is no regular file.
FileDescriptor open_log(const std::string& path, bool truncate);

/// Makes the folder for such files; nothing if `path` is empty. Throws Error.
void make_log_dir(const std::string& path);

}  // namespace lockstep::launcher
