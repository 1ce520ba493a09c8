#include "lockstep/train/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "lockstep/core/check.h"
#include "lockstep/core/log.h"

namespace lockstep::training {
namespace {

/// The size of a regular file; -1 for a terminal or a pipe.
off_t size_of(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
}

/// The path names another file, or none. False where that cannot be told.
bool has_lost(const std::string& path, int file) {
  struct stat named {};
  struct stat opened {};
  if (::stat(path.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;
  return ::fstat(file, &opened) == 0 && (named.st_ino != opened.st_ino || named.st_dev != opened.st_dev);
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
    : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (appends ? O_APPEND : 0), 0666)),
      path_(std::filesystem::absolute(path)),
      what_(what) {
  LOCKSTEP_CHECK(file_, "the {} '{}' cannot be opened for writing: {}", what, path, std::strerror(errno));
  const off_t size = size_of(file_.get());
  if (size < 0) return;  // several may share a terminal, a pipe or /dev/null
  // A file system without locks has none to tell of.
  LOCKSTEP_CHECK(::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
                 "the {} '{}' is written by another training, which is still running; name another file, or end that "
                 "one first",
                 what, path);
  if (!appends) {
    LOCKSTEP_CHECK(::ftruncate(file_.get(), 0) == 0, "the {} '{}' cannot be begun anew: {}", what, path,
                   std::strerror(errno));
    return;
  }
  if (const off_t end = end_of_lines(path, size); end >= 0 && end < size)
    LOCKSTEP_CHECK(::ftruncate(file_.get(), end) == 0,
                   "the {} '{}' ends in the middle of a line, which cannot be cut off: {}", what, path,
                   std::strerror(errno));
}

void LineFile::write(std::string text) {
  text += '\n';
  const off_t start = size_of(file_.get());
  if (start >= 0 && !lost_ && has_lost(path_, file_.get())) {
    lost_ = true;
    logging::warn("the {} '{}' was removed or renamed while it is written; lines go on into the file that had the name",
                  what_, path_);
  }
  if (write_all(file_.get(), text.data(), text.size())) return;
  if (error_ == 0) {
    error_ = errno;
    logging::warn("the {} '{}' cannot be written: {}; what runs goes on, and lines will be missing there", what_, path_,
                  std::strerror(error_));
  }
  if (start >= 0 && ::ftruncate(file_.get(), start) == 0) ::lseek(file_.get(), start, SEEK_SET);
}

}  // namespace lockstep::training
