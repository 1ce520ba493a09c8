#include "lockstep/distributed/launcher/failure_reports.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "lockstep/core/check.h"

namespace lockstep::launcher {

FailureReports::FailureReports() : pipe_(make_pipe()) {
  for (const int fd : {pipe_.read.get(), pipe_.write.get()}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

std::string FailureReports::place() const {
  struct stat status {};
  ::fstat(pipe_.write.get(), &status);
  return fmt::format("{}:{}", pipe_.write.get(), status.st_ino);
}

const std::vector<FailureReports::Report>& FailureReports::read() {
  std::array<char, 4096> chunk;
  for (ssize_t size = 0; (size = ::read(pipe_.read.get(), chunk.data(), chunk.size())) > 0;)
    received_.append(chunk.data(), static_cast<std::size_t>(size));
  for (std::size_t end = 0; (end = received_.find('\n')) != std::string::npos; received_.erase(0, end + 1)) {
    const char* const last = received_.data() + end;
    Report report;
    const auto [rest, error] = std::from_chars(received_.data(), last, report.rank);
    if (error != std::errc() || last - rest < 2 || rest[0] != ' ') continue;
    report.own = rest[1] == '!';
    report.text.assign(rest + 2, last);
    reports_.push_back(std::move(report));
  }
  return reports_;
}

}  // namespace lockstep::launcher
