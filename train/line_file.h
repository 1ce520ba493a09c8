#pragma once

// For .cpp files only.

#include <string>
#include <string_view>

#include "lockstep/core/posix.h"

namespace lockstep::training {

/// A file to which a training adds a line at a time. Each is in the file when write() returns, whatever becomes of the
/// process, and none begins behind the rest of another that a process has not come to end.
class LineFile {
 public:
  LineFile() = default;
  /// `appends`: goes on in a file that is there, behind its last whole line. Throws Error, calling the file `what`, if
  /// it cannot be opened, or another process writes it as one.
  LineFile(const std::string& path, const std::string& what, bool appends);

  bool is_open() const { return static_cast<bool>(file_); }
  /// Adds a line; `text` has no end of line. One that cannot be written whole is left out, and error() says why.
  void write(std::string text);
  /// An errno; 0: all lines are in the file.
  int error() const { return error_; }
  /// Its name was taken from it: removed, or given to another file, since it was opened. The first line after that also
  /// logs a warning.
  bool is_lost() const { return lost_; }

 private:
  FileDescriptor file_;
  std::string path_, what_;
  bool lost_ = false;
  int error_ = 0;
};

}  // namespace lockstep::training
