#include "lockstep/core/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/out_of_memory.h"

namespace lockstep {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;

/// "[safetensors] 'model.safetensors'"
std::string place(std::string_view who, const std::string& path) {
  return fmt::format("{}{}'{}'", who, who.empty() ? "" : " ", path);
}

const char* kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

InputFile open_input_file(const std::string& path, std::string_view who) {
  const std::string where = place(who, path);
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  // A socket cannot be opened at all.
  LOCKSTEP_CHECK(file || errno != ENXIO, "{} is a socket, not a regular file; expected a file on disk", where);
  LOCKSTEP_CHECK(file, "{}{}cannot open '{}': {}; check the path and its permissions", who, who.empty() ? "" : " ",
                 path, std::strerror(errno));
  struct stat info {};
  LOCKSTEP_CHECK(::fstat(file.get(), &info) == 0, "{} cannot be examined: {}", where, std::strerror(errno));
  LOCKSTEP_CHECK(!S_ISDIR(info.st_mode), "{} is a directory; expected a file", where);
  LOCKSTEP_CHECK(S_ISREG(info.st_mode), "{} is {}, not a regular file; expected a file on disk", where,
                 kind_of(info.st_mode));
  return {std::move(file), static_cast<std::uint64_t>(info.st_size)};
}

namespace {

std::string read(const std::string& path, std::string_view who, std::uint64_t most) {
  const InputFile file = open_input_file(path, who);
  const auto check_size = [&](std::uint64_t size) {
    LOCKSTEP_CHECK(size <= most, "{} has {} bytes; expected at most {}", place(who, path), size, most);
  };
  check_size(file.size);
  std::string content;
  content.reserve(static_cast<std::size_t>(file.size));
  for (std::size_t done = 0;;) {  // to its end, which may have moved since
    const std::size_t left = file.size > done ? static_cast<std::size_t>(file.size) - done : 0;
    content.resize(done + std::max(left, kPiece));
    const std::int64_t came = read_all(file.descriptor.get(), content.data() + done, content.size() - done);
    LOCKSTEP_CHECK(came >= 0, "{} cannot be read: {}", place(who, path), std::strerror(errno));
    done += static_cast<std::size_t>(came);
    const bool ended = done < content.size();
    content.resize(done);
    check_size(done);
    if (ended) return content;
  }
}

}  // namespace

std::string read_input_file(const std::string& path, std::string_view who, std::uint64_t most) {
  return with_memory_for(fmt::format("reading '{}'", path), [&] { return read(path, who, most); });
}

InputLines::InputLines(const std::string& path, std::string_view who)
    : path_(path), who_(who), file_(open_input_file(path, who).descriptor) {}

bool InputLines::refill() {
  buffer_.erase(0, at_);
  at_ = 0;
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kPiece);
  const std::int64_t came = read_all(file_.get(), buffer_.data() + before, kPiece);
  LOCKSTEP_CHECK(came >= 0, "{} cannot be read: {}", place(who_, path_), std::strerror(errno));
  buffer_.resize(before + static_cast<std::size_t>(came));
  return came > 0;
}

bool InputLines::at_end() {
  return at_ == buffer_.size() && !refill();
}

bool InputLines::next(std::string& line) {
  if (at_end()) return false;
  ++number_;
  std::size_t end = buffer_.find('\n', at_);
  while (end == std::string::npos) {
    const std::size_t seen = buffer_.size() - at_;
    LOCKSTEP_CHECK(seen <= kMost, "{}, line {} has more than {} bytes; is it another kind of file?", place(who_, path_),
                   number_, kMost);
    if (!refill()) break;
    end = buffer_.find('\n', at_ + seen);
  }
  line.assign(buffer_, at_, std::min(end, buffer_.size()) - at_);
  at_ = std::min(end, buffer_.size() - 1) + 1;
  return true;
}

}  // namespace lockstep
