#include "lockstep/train/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "lockstep/core/check.h"

namespace lockstep::train {
namespace {

/// The size of a regular file; -1 for a terminal or a pipe.
off_t size_of(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
}

/// Where the last whole line of a regular file ends; -1 if it cannot be read.
off_t end_of_lines(const std::string& path, off_t size) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return -1;
  std::array<char, 4096> piece;
  while (size > 0) {
    const off_t from = std::max<off_t>(0, size - static_cast<off_t>(piece.size()));
    const auto bytes = static_cast<std::size_t>(size - from);
    if (read_all_at(file.get(), piece.data(), bytes, static_cast<std::uint64_t>(from)) !=
        static_cast<std::int64_t>(bytes))
      return -1;
    const std::size_t line = std::string_view(piece.data(), bytes).rfind('\n');
    if (line != std::string_view::npos) return from + static_cast<off_t>(line) + 1;
    size = from;
  }
  return 0;
}

}  // namespace

LineFile::LineFile(const std::string& path, const std::string& what, bool appends)
    : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (appends ? O_APPEND : O_TRUNC), 0666)) {
  LOCKSTEP_CHECK(file_, "the {} '{}' cannot be opened for writing: {}", what, path, std::strerror(errno));
  const off_t size = appends ? size_of(file_.get()) : -1;
  if (size <= 0) return;
  if (const off_t end = end_of_lines(path, size); end >= 0 && end < size)
    LOCKSTEP_CHECK(::ftruncate(file_.get(), end) == 0,
                   "the {} '{}' ends in the middle of a line, which cannot be cut off: {}", what, path,
                   std::strerror(errno));
}

void LineFile::write(std::string text) {
  text += '\n';
  const off_t start = size_of(file_.get());
  if (write_all(file_.get(), text.data(), text.size())) return;
  if (error_ == 0) error_ = errno;
  if (start >= 0 && ::ftruncate(file_.get(), start) == 0) ::lseek(file_.get(), start, SEEK_SET);
}

}  // namespace lockstep::train
