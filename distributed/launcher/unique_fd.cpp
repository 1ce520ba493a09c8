#include "lockstep/distributed/launcher/unique_fd.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"

namespace lockstep::launcher {

Pipe make_pipe() {
  int fds[2];
  LOCKSTEP_CHECK(::pipe2(fds, O_CLOEXEC) == 0,
                 "a pipe could not be made: {}; raise the limit on open files (ulimit -n)", std::strerror(errno));
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

bool write_all(int fd, const char* data, std::size_t size) {
  constexpr int kStalledMilliseconds = 60'000;
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written > 0) {
      data += written;
      size -= static_cast<std::size_t>(written);
    } else if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      pollfd wait{fd, POLLOUT, 0};
      if (::poll(&wait, 1, kStalledMilliseconds) == 0) return false;
    } else if (!(written < 0 && errno == EINTR)) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::launcher
