#include "lockstep/core/outlet.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool takes_more(int fd) {
  pollfd target{fd, POLLOUT, 0};
  return ::poll(&target, 1, 0) > 0;
}

FileDescriptor without_waits(int fd) {
  if (::isatty(fd) == 0) return FileDescriptor();
  const std::string name = fmt::format("/proc/self/fd/{}", fd);
  return FileDescriptor(::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Outlet::Outlet(int fd) : fd_(fd), terminal_(without_waits(fd)) {}

bool Outlet::has_reader() const {
  struct stat status {};
  return ::fstat(fd_, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

void Outlet::write(std::string_view text) {
  if (empty()) taken_ = std::chrono::steady_clock::now();
  kept_ += text;
  lines_ += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  flush();
  if (kept_.size() - written_ > kLongest && stands_still()) drop_oldest();
}

// Half of what is kept, in whole lines, so that it is seldom done. A line that the reader has begun to take stays.
void Outlet::drop_oldest() {
  kept_.erase(0, written_);
  gap_ = dropped_ > 0 ? gap_ - written_ : 0;
  written_ = 0;
  if (dropped_ == 0 && !at_line_start_) gap_ = std::min(kept_.find('\n'), kept_.size() - 1) + 1;
  const std::size_t end = kept_.find('\n', std::max(gap_, kept_.size() / 2));
  if (end == std::string::npos) return;
  const auto from = kept_.begin() + static_cast<std::ptrdiff_t>(gap_);
  const auto to = kept_.begin() + static_cast<std::ptrdiff_t>(end + 1);
  dropped_ += static_cast<std::size_t>(std::count(from, to, '\n'));
  kept_.erase(from, to);
}

void Outlet::tell_of_dropped() {
  kept_.insert(gap_, fmt::format("warning: {} line(s) are missing here: nobody read this stream, and the job did not "
                                 "wait; lockstep-run keeps all of them with --log-dir\n",
                                 dropped_));
  dropped_ = 0;
}

void Outlet::flush() {
  constexpr std::size_t kPiece = PIPE_BUF;  // cut after a line, so that lines of others fall between
  while (!empty() && takes_more(fd_)) {
    if (dropped_ > 0 && written_ == gap_) tell_of_dropped();
    const std::size_t end = dropped_ > 0 ? gap_ : kept_.size();
    const std::string_view rest = std::string_view(kept_).substr(written_, end - written_);
    std::string_view piece = rest.substr(0, kPiece);
    if (const auto line = piece.rfind('\n'); line != std::string_view::npos) piece = piece.substr(0, line + 1);
    const FileSizeErrors errors_only;
    const ssize_t count = abandoned_ ? 0 : ::write(terminal_ ? terminal_.get() : fd_, piece.data(), piece.size());
    if (count > 0) {
      written_ += static_cast<std::size_t>(count);
      at_line_start_ = kept_[written_ - 1] == '\n';
      taken_ = std::chrono::steady_clock::now();
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0 && errno == EPIPE) abandoned_ = true;  // SIGPIPE says so, once
    if (count < 0 && errno != EPIPE && error_ == 0) error_ = errno;
    written_ = kept_.size();
    dropped_ = 0;
  }
  if (empty()) {
    kept_.clear();
    written_ = 0;
  } else if (written_ > kMostKept) {
    kept_.erase(0, written_);
    gap_ -= std::min(gap_, written_);
    written_ = 0;
  }
}

void Outlet::drain(bool for_ever) {
  constexpr int kLook = 100;  // ms
  for (flush(); !empty() && (for_ever || !stands_still()); flush()) {
    pollfd target{fd_, POLLOUT, 0};
    ::poll(&target, 1, for_ever ? -1 : kLook);
  }
}

}  // namespace lockstep
