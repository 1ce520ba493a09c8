#pragma once

// For .cpp files only.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "lockstep/core/posix.h"

namespace lockstep {

/// A file that a user names, open for reading.
struct InputFile {
  FileDescriptor descriptor;
  std::uint64_t size = 0;  ///< in bytes, when it was opened
};

/// Opens a regular file, without waiting: a pipe that nobody writes would hold its reader forever. Throws Error, with
/// `who` ("[safetensors]"; may be empty) in front, naming the path if there is none, or something else there: a
/// directory, a pipe, a socket or a device, which have no size and perhaps no end.
InputFile open_input_file(const std::string& path, std::string_view who);

/// All of such a file. Throws Error as above, and for one of more than `most` bytes before memory is taken for it.
std::string read_input_file(const std::string& path, std::string_view who,
                            std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

/// Such a file by lines, of which one is in memory at a time.
class InputLines {
 public:
  /// Throws Error as above.
  InputLines(const std::string& path, std::string_view who);
  /// The next line, without its end; false behind the last. Throws Error for a line of more than kMost bytes, and for
  /// one that cannot be read.
  bool next(std::string& line);
  /// Nothing follows.
  bool at_end();
  /// Of the line that came last, counted from 1.
  std::int64_t number() const { return number_; }

  static constexpr std::size_t kMost = std::size_t{64} << 20;

 private:
  bool refill();

  std::string path_, who_;
  FileDescriptor file_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace lockstep
