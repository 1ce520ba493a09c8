#include "lockstep/distributed/rendezvous/meeting_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "lockstep/core/check.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/posix.h"
#include "lockstep/core/sha256.h"

namespace lockstep::distributed {
namespace {

constexpr std::size_t kMaxTokenBytes = 4096;
constexpr std::string_view kFirstWord = "lockstep-meeting-1";

/// Another one after every start of the machine, and on every machine.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  return text;
}

std::string private_folder() {
  const std::string path = fmt::format("{}/lockstep-{}", environment_variable("TMPDIR").value_or("/tmp"), geteuid());
  LOCKSTEP_CHECK(mkdir(path.c_str(), 0700) == 0 || errno == EEXIST,
                 "[rendezvous] the folder '{}', where the job's processes meet, cannot be made: {}; set TMPDIR to a "
                 "folder that can be written, or MASTER_ADDR and MASTER_PORT",
                 path, std::strerror(errno));
  struct stat status {};
  const bool known = lstat(path.c_str(), &status) == 0;
  LOCKSTEP_CHECK(known && S_ISDIR(status.st_mode) && status.st_uid == geteuid() && (status.st_mode & 077) == 0,
                 "[rendezvous] '{}' is not a folder that belongs to this user alone (mode 0700), so nothing secret can "
                 "be left there; remove it, or set MASTER_ADDR and MASTER_PORT",
                 path);
  return path;
}

std::string contents(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return {};
  std::array<char, kFirstWord.size() + kMaxTokenBytes + 16> buffer;
  const std::int64_t size = read_all(file.get(), buffer.data(), buffer.size());
  return {buffer.data(), static_cast<std::size_t>(std::max<std::int64_t>(size, 0))};
}

}  // namespace

std::string encode(const MeetingPlace& place) {
  return fmt::format("{} {} {}\n", kFirstWord, place.port, place.token);
}

std::optional<MeetingPlace> decode_meeting_place(std::string_view text) {
  if (!text.starts_with(kFirstWord) || !text.ends_with('\n')) return {};
  text.remove_suffix(1);
  text.remove_prefix(kFirstWord.size());
  MeetingPlace place;
  if (text.size() < 2 || text[0] != ' ') return {};
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), place.port);
  if (error != std::errc() || place.port < 1 || place.port > 65'535) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.empty() || text[0] != ' ' || text.size() - 1 > kMaxTokenBytes) return {};
  place.token = text.substr(1);
  return place;
}

MeetingFile::MeetingFile(std::string_view job) {
  const std::string name = to_hex(sha256(boot_id() + '\n' + std::string(job)));
  path_ = private_folder() + "/" + name.substr(0, 32);
}

MeetingFile::~MeetingFile() {
  if (made_in_.is_here() && !written_.empty() && contents(path_) == written_) unlink(path_.c_str());
}

void MeetingFile::write(const MeetingPlace& place) {
  const std::string text = encode(place);
  const std::string fresh = fmt::format("{}.{}", path_, getpid());
  unlink(fresh.c_str());
  const FileDescriptor file(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool done =
      file && write_all(file.get(), text.data(), text.size()) && rename(fresh.c_str(), path_.c_str()) == 0;
  const int error = errno;
  if (!done) unlink(fresh.c_str());
  LOCKSTEP_CHECK(done, "[rendezvous] '{}', where the job's processes meet, cannot be written: {}", path_,
                 std::strerror(error));
  written_ = text;
}

std::optional<MeetingPlace> MeetingFile::read() const {
  return decode_meeting_place(contents(path_));
}

}  // namespace lockstep::distributed
