#include "lockstep/distributed/launcher/outlet.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "lockstep/core/posix.h"

namespace lockstep::launcher {
namespace {

bool takes_more(int fd) {
  pollfd target{fd, POLLOUT, 0};
  return ::poll(&target, 1, 0) > 0;
}

}  // namespace

void Outlet::write(std::string_view text) {
  kept_ += text;
  lines_ += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  flush();
}

void Outlet::flush() {
  // A pipe that is ready takes this much at once; cut after a line, so that lines of others fall between.
  constexpr std::size_t kPiece = PIPE_BUF;
  while (!empty() && takes_more(fd_)) {
    const std::string_view rest = std::string_view(kept_).substr(written_);
    std::string_view piece = rest.substr(0, kPiece);
    if (const auto line = piece.rfind('\n'); line != std::string_view::npos) piece = piece.substr(0, line + 1);
    const FileSizeErrors errors_only;
    const ssize_t count = abandoned_ ? 0 : ::write(fd_, piece.data(), piece.size());
    if (count > 0) {
      written_ += static_cast<std::size_t>(count);
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0 && errno == EPIPE) abandoned_ = true;  // SIGPIPE says so, once
    if (count < 0 && errno != EPIPE && error_ == 0) error_ = errno;
    written_ = kept_.size();
  }
  if (empty()) {
    kept_.clear();
    written_ = 0;
  } else if (written_ > kMostKept) {
    kept_.erase(0, written_);
    written_ = 0;
  }
}

void Outlets::drain(SignalPipe& signals) {
  for (;;) {
    out.flush();
    err.flush();
    if (out.empty() && err.empty()) return;
    pollfd fds[] = {{signals.fd(), POLLIN, 0},
                    {out.empty() ? -1 : out.fd(), POLLOUT, 0},
                    {err.empty() ? -1 : err.fd(), POLLOUT, 0}};
    if (::poll(fds, 3, -1) > 0 && fds[0].revents)
      for (const int signal : signals.take())
        if (asks_to_end(signal)) return;
  }
}

}  // namespace lockstep::launcher
