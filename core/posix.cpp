#include "lockstep/core/posix.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 30;  // Linux moves at most 2 GiB a call
constexpr int kStalledMilliseconds = 60'000;

/// `some(done, most)` reads some more bytes.
template <typename Some>
std::int64_t read_until_done(std::size_t bytes, Some&& some) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = some(done, std::min(bytes - done, kMost));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace

void FileDescriptor::reset(int fd) noexcept {
  const int old = std::exchange(fd_, fd);
  if (old < 0) return;
  const int error = errno;
  ::close(old);
  errno = error;
}

Pipe make_pipe(int flags) {
  int ends[2];
  LOCKSTEP_CHECK(::pipe2(ends, O_CLOEXEC | flags) == 0,
                 "a pipe could not be made: {}; raise the limit on open files (ulimit -n)", std::strerror(errno));
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

FileSizeErrors::FileSizeErrors() noexcept {
  sigset_t too_large;
  sigemptyset(&too_large);
  sigaddset(&too_large, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &too_large, &before_);
}

FileSizeErrors::~FileSizeErrors() {
  const int error = errno;
  if (sigismember(&before_, SIGXFSZ) == 0) {
    sigset_t too_large;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    const timespec now{};
    ::sigtimedwait(&too_large, nullptr, &now);  // the kernel sends it to the thread that wrote
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  errno = error;
}

std::int64_t read_all(int fd, void* data, std::size_t bytes) noexcept {
  return read_until_done(
      bytes, [&](std::size_t done, std::size_t most) { return ::read(fd, static_cast<char*>(data) + done, most); });
}

std::int64_t read_all_at(int fd, void* data, std::size_t bytes, std::uint64_t offset) noexcept {
  return read_until_done(bytes, [&](std::size_t done, std::size_t most) {
    return ::pread(fd, static_cast<char*>(data) + done, most, static_cast<off_t>(offset + done));
  });
}

bool write_all(int fd, const void* data, std::size_t bytes) noexcept {
  const FileSizeErrors errors_only;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, next, std::min(bytes, kMost));
    if (written > 0) {
      next += written;
      bytes -= static_cast<std::size_t>(written);
    } else if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      pollfd wait{fd, POLLOUT, 0};
      if (::poll(&wait, 1, kStalledMilliseconds) == 0) {
        errno = EAGAIN;
        return false;
      }
    } else if (!(written < 0 && errno == EINTR)) {
      if (written == 0) errno = EIO;
      return false;
    }
  }
  return true;
}

}  // namespace lockstep
