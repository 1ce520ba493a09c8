#include "distributed/launcher/failure_reports.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <charconv>

#include "core/check.h"

namespace lockstep::launcher {

FailureReports::FailureReports() : pipe_(make_pipe()) {
  for (const int fd : {pipe_.read.get(), pipe_.write.get()}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

std::string FailureReports::place() const {
  struct stat status {};
  ::fstat(pipe_.write.get(), &status);
  return fmt::format("{}:{}", pipe_.write.get(), status.st_ino);
}

FailureReports::Report FailureReports::first() {
  std::array<char, 4096> chunk;
  ssize_t size;
  while (received_.find('\n') == std::string::npos && (size = ::read(pipe_.read.get(), chunk.data(), chunk.size())) > 0)
    received_.append(chunk.data(), static_cast<std::size_t>(size));
  const std::size_t end = received_.find('\n');
  if (end == std::string::npos) return {};
  Report report;
  const char* const last = received_.data() + end;
  const auto [rest, error] = std::from_chars(received_.data(), last, report.rank);
  if (error != std::errc() || rest == last || *rest != ' ') return {};
  report.text.assign(rest + 1, last);
  return report;
}

}  // namespace lockstep::launcher
