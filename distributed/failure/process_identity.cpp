#include "lockstep/distributed/failure/process_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string_view>

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/core/posix.h"

namespace lockstep::distributed {
namespace {

/// Empty, with errno set, if it cannot be read.
std::string read_small_file(const char* path) {
  const FileDescriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  std::array<char, 1024> buffer;
  const std::int64_t size = read_all(file.get(), buffer.data(), buffer.size());
  return size > 0 ? std::string(buffer.data(), static_cast<std::size_t>(size)) : std::string();
}

struct Stat {
  char state = '?';
  std::uint64_t start = 0;
};

/// Of /proc/<pid>/stat: field 3 and field 22, counted from 1; the name in field 2 may hold anything but ends the last
/// parenthesis.
std::optional<Stat> parse_stat(std::string_view text) {
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) return {};
  Stat stat;
  stat.state = text[name_end + 2];
  std::size_t at = name_end + 2;
  for (int field = 3; field < 22; ++field) {
    at = text.find(' ', at);
    if (at == std::string_view::npos) return {};
    ++at;
  }
  const auto start = parse_number<std::uint64_t>(text.substr(at, text.find(' ', at) - at));
  if (!start) return {};
  stat.start = *start;
  return stat;
}

std::string stat_path(pid_t pid) {
  return "/proc/" + std::to_string(pid) + "/stat";
}

}  // namespace

ProcessIdentity own_identity() {
  ProcessIdentity own;
  own.pid = ::getpid();
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) own.host = name.data();
  std::string boot = read_small_file("/proc/sys/kernel/random/boot_id");
  if (const std::size_t end = boot.find('\n'); end != std::string::npos) boot.resize(end);
  std::array<char, 64> pids{};
  if (::readlink("/proc/self/ns/pid", pids.data(), pids.size() - 1) > 0 && !boot.empty())
    own.space = boot + " " + pids.data();
  if (const auto stat = parse_stat(read_small_file(stat_path(own.pid).c_str()))) own.start = stat->start;
  return own;
}

std::string encode(const ProcessIdentity& process) {
  return fmt::format("{}\t{}\t{}\t{}", process.pid, process.start, process.space, process.host);
}

ProcessIdentity decode_identity(const std::string& text) {
  std::array<std::string, 3> fields;
  std::size_t at = 0;
  for (std::string& field : fields) {
    const std::size_t end = text.find('\t', at);
    if (end == std::string::npos) return {};
    field = text.substr(at, end - at);
    at = end + 1;
  }
  const auto pid = parse_number<pid_t>(fields[0]);
  const auto start = parse_number<std::uint64_t>(fields[1]);
  if (!pid || !start) return {};
  return {.host = text.substr(at), .space = fields[2], .pid = *pid, .start = *start};
}

ProcessFate fate_of(const ProcessIdentity& process) {
  static const std::string own_space = own_identity().space;
  if (process.pid <= 0 || process.start == 0 || process.space.empty() || process.space != own_space)
    return ProcessFate::unknown;
  errno = 0;
  const std::string text = read_small_file(stat_path(process.pid).c_str());
  if (text.empty()) return errno == ENOENT || errno == ESRCH ? ProcessFate::gone : ProcessFate::unknown;
  const auto stat = parse_stat(text);
  if (!stat) return ProcessFate::unknown;
  if (stat->start != process.start || stat->state == 'Z' || stat->state == 'X') return ProcessFate::gone;
  return stat->state == 'T' || stat->state == 't' ? ProcessFate::stopped : ProcessFate::running;
}

}  // namespace lockstep::distributed
