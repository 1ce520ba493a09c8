#include "lockstep/distributed/launcher/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "lockstep/core/check.h"
#include "lockstep/distributed/launcher/limits.h"

namespace lockstep::launcher {

int Outlets::drain(SignalPipe& signals, const std::string& name) {
  constexpr int kPatience = 2000;  // ms
  for (bool told = false;;) {
    out.flush();
    err.flush();
    if (out.empty() && err.empty()) return 0;
    pollfd fds[] = {{signals.fd(), POLLIN, 0},
                    {out.empty() ? -1 : out.fd(), POLLOUT, 0},
                    {err.empty() ? -1 : err.fd(), POLLOUT, 0}};
    const int ready = ::poll(fds, 3, told ? -1 : kPatience);
    if (ready > 0 && fds[0].revents)
      for (const int signal : signals.take())
        // SIGPIPE speaks of an outlet that flush() has given up by now; the other may have a reader.
        if (asks_to_end(signal) && signal != SIGPIPE) return signal;
    if (ready != 0 || told) continue;
    told = true;
    err.write(
        fmt::format("{}: the job has ended, and what it printed waits for a reader of {} that stands still; "
                    "read it, or give it up with Ctrl-C\n",
                    name, out.empty() ? "stderr" : "stdout"));
  }
}

void Stream::pump() {
  char buffer[16384];
  const ssize_t count = ::read(source_.get(), buffer, sizeof buffer);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) {
    finish();
    return;
  }
  if (copy_ && !write_all(copy_.get(), buffer, static_cast<std::size_t>(count)) && copy_error_.empty())
    copy_error_ = std::strerror(errno);
  std::string_view rest(buffer, static_cast<std::size_t>(count));
  if (prefix_.empty() && !keep_lines_) {
    target_->write(rest);
    return;
  }
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    partial_ += rest.substr(0, end);
    if (end != std::string_view::npos || partial_.size() >= kMaxLineBytes) {
      emit(partial_);
      partial_.clear();
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
}

void Stream::finish() {
  if (!partial_.empty()) emit(partial_);
  partial_.clear();
  source_.reset();
}

void Stream::emit(std::string_view line) {
  std::string text = prefix_;
  text += line;
  text += '\n';
  target_->write(text);
  lines_at_ = target_->lines();
  if (!keep_lines_) return;
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kKeptLines) last_lines_.pop_front();
}

FileDescriptor open_log(const std::string& path, bool truncate) {
  if (path.empty()) return FileDescriptor();
  // O_NONBLOCK: a pipe that nobody reads is refused, where opening it would wait.
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644));
  LOCKSTEP_CHECK(file || errno != ENXIO, "log file '{}' cannot be written: it is a pipe that nobody reads", path);
  LOCKSTEP_CHECK(file, "log file '{}' cannot be written: {}", path, std::strerror(errno));
  struct stat info {};
  LOCKSTEP_CHECK(
      ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode),
      "log file '{}' cannot be written: it is a pipe, a socket or a device; expected a new name or that of a "
      "file",
      path);
  // As long as it is open. A file system without locks has none to tell of.
  LOCKSTEP_CHECK(::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
                 "log file '{}' is written by another job, which is still running; name another --log-dir, or end that "
                 "one first",
                 path);
  LOCKSTEP_CHECK(!truncate || ::ftruncate(file.get(), 0) == 0, "log file '{}' cannot be begun anew: {}", path,
                 std::strerror(errno));
  return file;
}

void make_log_dir(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  LOCKSTEP_CHECK(!error && std::filesystem::is_directory(path), "log folder '{}' cannot be made: {}", path,
                 error.message());
}

}  // namespace lockstep::launcher
