#include "lockstep/train/checkpoint_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "lockstep/core/atomic_file.h"
#include "lockstep/core/check.h"

namespace lockstep::training {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel
constexpr int kAttempts = 100;
constexpr std::size_t kMostOfOwner = 100;  // bytes

std::string owner_here() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("process {} on {}", ::getpid(), host);
}

// Another user may have written it, for a terminal perhaps.
std::string owner_in(int descriptor) {
  char text[kMostOfOwner];
  const ssize_t n = ::pread(descriptor, text, sizeof text, 0);
  if (n <= 0) return "another process";
  std::string owner(text, static_cast<std::size_t>(n));
  std::replace_if(
      owner.begin(), owner.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return owner;
}

// Whether `file` still is what was opened: its last holder removes it. `unknown`: what to take it for where the system
// does not say.
bool is_same_file(const std::string& file, int descriptor, bool unknown) {
  struct stat by_name {
  }, opened{};
  if (::stat(file.c_str(), &by_name) != 0) return errno != ENOENT && errno != ENOTDIR && unknown;
  if (::fstat(descriptor, &opened) != 0) return unknown;
  return by_name.st_ino == opened.st_ino && by_name.st_dev == opened.st_dev;
}

}  // namespace

CheckpointLock::CheckpointLock(const std::string& path, const std::string& what) {
  namespace fs = std::filesystem;
  fs::path target = path;  // where links lead, though nothing may be there yet
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(target, error)); ++i) {
    const fs::path next = fs::read_symlink(target, error);
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  file_ = (target.parent_path() / fmt::format(".{}.lock", shortened(target.filename().string(), kLongestName - 6)))
              .string();
  for (int i = 0;; ++i) {
    LOCKSTEP_CHECK(
        i < kAttempts,
        "the {} '{}' cannot be kept for this training: its lock '{}' is taken away again and again; write to "
        "a folder that nobody else cleans",
        what, path, file_);
    descriptor_.reset(::open(file_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    // Whoever can read the file could hold the lock, and no restart would get it.
    if (descriptor_) ::fchmod(descriptor_.get(), 0600);
    if (!descriptor_) return;  // whether the checkpoint can be written is tried elsewhere
    if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0) {
      const int cause = errno;
      LOCKSTEP_CHECK(cause != EWOULDBLOCK,
                     "'{}' is the {} of another training, which is still running ({}); write to another file, or end "
                     "that one first",
                     path, what, owner_in(descriptor_.get()));
      descriptor_.reset();
      return;
    }
    if (is_same_file(file_, descriptor_.get(), true)) break;
  }
  const std::string owner = owner_here();
  if (::ftruncate(descriptor_.get(), 0) == 0) write_all(descriptor_.get(), owner.data(), owner.size());
}

CheckpointLock::~CheckpointLock() {
  // Somebody may have removed the file, and another training have made its own in that place.
  if (made_in_.is_here() && descriptor_ && is_same_file(file_, descriptor_.get(), false)) ::unlink(file_.c_str());
}

}  // namespace lockstep::training
