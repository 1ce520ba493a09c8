#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace lockstep {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  /// -1 if there is none.
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// Closes what it holds and takes `fd`. Leaves errno as it was.
  void reset(int fd = -1) noexcept;
  /// Gives the descriptor away, unclosed.
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

/// A pipe that programs started later do not inherit; `flags` as for pipe2(), such as O_NONBLOCK. Throws Error.
Pipe make_pipe(int flags = 0);

/// While it lives, what this thread writes past the limit on the size of files (ulimit -f) fails with EFBIG, as on a
/// full disk, instead of ending the process by SIGXFSZ. errno stays as it was. May be used in a signal handler.
class FileSizeErrors {
 public:
  FileSizeErrors() noexcept;
  ~FileSizeErrors();
  FileSizeErrors(const FileSizeErrors&) = delete;
  FileSizeErrors& operator=(const FileSizeErrors&) = delete;

 private:
  sigset_t before_;
};

// These go on after an interruption by a signal and after a part; they set errno, allocate nothing, and may be called
// in a signal handler.

/// Reads until `bytes` bytes have come or the end has. Returns how many came; -1 on an error.
std::int64_t read_all(int fd, void* data, std::size_t bytes) noexcept;
/// The same from byte `offset` of a file on.
std::int64_t read_all_at(int fd, void* data, std::size_t bytes, std::uint64_t offset) noexcept;
/// Writes all of it, under FileSizeErrors; where the descriptor does not block, waits until it takes more, for a minute
/// at most. False, with errno set, if it cannot be written.
bool write_all(int fd, const void* data, std::size_t bytes) noexcept;

}  // namespace lockstep
