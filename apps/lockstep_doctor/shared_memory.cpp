#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "apps/lockstep_doctor/checks.h"
#include "lockstep/core/check.h"
#include "lockstep/core/posix.h"
#include "lockstep/core/process.h"
#include "lockstep/distributed/shm/segment.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kArea = "shared memory";
constexpr double kMiB = 1024.0 * 1024.0;

/// In a child: opens the segment and says why it cannot; empty if it can.
std::string open_in_child(const std::string& ticket) {
  Pipe answer = make_pipe();
  const auto open_and_answer = [&] {
    std::string text = "ok";
    try {
      distributed::shm::Segment::open(ticket, 2).rank(1).pid = ::getpid();
    } catch (const std::exception& error) {
      text = error.what();
    }
    return write_all(answer.write.get(), text.data(), text.size()) ? 0 : 1;
  };
  const pid_t child = start_process({.function = open_and_answer});
  answer.write.reset();
  std::array<char, 1024> text{};
  const std::int64_t size = read_all(answer.read.get(), text.data(), text.size());
  ::waitpid(child, nullptr, 0);
  const std::string said(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return said == "ok" ? "" : said.empty() ? "the other process ended without a word" : said;
}

Finding segment() {
  Finding finding{kArea, "segment", Verdict::ok, "made here, opened by another process"};
  try {
    const auto made = distributed::shm::Segment::create(2);
    const std::string obstacle = open_in_child(made.ticket());
    if (obstacle.empty()) return finding;
    finding.found = obstacle;
    finding.remedy =
        "the ranks need one user, one PID namespace and /proc (docker run --pid host or one container for all ranks; "
        "no hidepid); until then use --backend gloo";
  } catch (const Error& error) {
    finding.found = error.what();
    finding.remedy =
        "allow memfd_create (kernel 3.17 or later, seccomp), raise memory and file limits; until then use "
        "--backend gloo";
  }
  finding.verdict = Verdict::failed;
  return finding;
}

/// lockstep does not use it, but MPI and data loaders do.
Finding folder() {
  constexpr double kSmall = 64;
  struct statvfs system {};
  if (::statvfs("/dev/shm", &system) != 0)
    return {kArea, "/dev/shm", Verdict::note, "is not there; MPI may need it", "mount -t tmpfs tmpfs /dev/shm"};
  const double free_mib = static_cast<double>(system.f_bavail) * static_cast<double>(system.f_frsize) / kMiB;
  if (free_mib <= kSmall)
    return {kArea, "/dev/shm", Verdict::note,
            fmt::format("{:.0f} MiB free; lockstep's own transport needs none, MPI does", free_mib),
            "docker run --shm-size 1g, or remove what lies there"};
  return {kArea, "/dev/shm", Verdict::ok, fmt::format("{:.0f} MiB free", free_mib)};
}

}  // namespace

Findings check_shared_memory() {
  return {segment(), folder()};
}

}  // namespace lockstep::doctor
