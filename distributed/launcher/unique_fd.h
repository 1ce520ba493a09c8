#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep::launcher {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

/// A pipe that programs started later do not inherit. Throws Error.
Pipe make_pipe();

/// Writes all of it; waits where the descriptor does not block. Returns false once nobody reads any more.
bool write_all(int fd, const char* data, std::size_t size);

}  // namespace lockstep::launcher
