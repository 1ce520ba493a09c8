#include "lockstep/core/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel
constexpr int kAttempts = 16;
constexpr std::string_view kEnding = ".tmp";
constexpr std::size_t kDigits = 16;
constexpr std::size_t kHash = 1 + kDigits;  // bytes of "~" and the digits
// Of a name within a temporary one, which is a dot, the name, another dot, digits and the ending.
constexpr std::size_t kLongest = kLongestName - 2 - kDigits - kEnding.size();

/// The kernel's rule for links that it follows itself (proc(5), protected_symlinks), however it is set: in a sticky
/// folder that everybody may write, a link leads where its owner wants others to write.
bool may_follow(const std::filesystem::path& link) {
  constexpr mode_t kShared = S_ISVTX | S_IWOTH;
  struct stat itself {
  }, folder{};
  const std::filesystem::path parent = link.parent_path();
  if (::lstat(link.c_str(), &itself) != 0 || ::stat(parent.empty() ? "." : parent.c_str(), &folder) != 0) return false;
  return itself.st_uid == ::geteuid() || (folder.st_mode & kShared) != kShared || itself.st_uid == folder.st_uid;
}

// Where `path` leads, though nothing may be there yet.
std::string follow_links(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path at = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(at, error))) return at.string();
    LOCKSTEP_CHECK(
        may_follow(at),
        "cannot write {}: it is a link of another user{}, in a folder that everybody may write, and may lead "
        "anywhere; name another file, or remove the link",
        path, at == path ? "" : fmt::format(", {}", at.string()));
    const fs::path target = fs::read_symlink(at, error);
    LOCKSTEP_CHECK(!error, "cannot write {}: the link {} cannot be read: {}", path, at.string(), error.message());
    at = target.is_absolute() ? target : at.parent_path() / target;
  }
  detail::throw_error(fmt::format("cannot write {}: {}", path, std::strerror(ELOOP)));
}

/// The name within a temporary one; empty if `name` is none.
std::string_view named_by(std::string_view name) {
  constexpr std::size_t kBehind = 1 + kDigits + kEnding.size();
  if (name.size() < 2 + kBehind || name.front() != '.' || !name.ends_with(kEnding)) return {};
  const std::string_view random = name.substr(name.size() - kBehind, 1 + kDigits);
  if (random.front() != '.' || random.find_first_not_of("0123456789abcdef", 1) != std::string_view::npos) return {};
  return name.substr(1, name.size() - 1 - kBehind);
}

std::string own_link(int descriptor) {
  return fmt::format("/proc/self/fd/{}", descriptor);
}

}  // namespace

std::string shortened(const std::string& name, std::size_t bytes) {
  if (name.size() <= bytes) return name;
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  std::size_t kept = bytes - kHash;
  while (kept > 0 && (static_cast<unsigned char>(name[kept]) & 0xC0u) == 0x80u) --kept;  // no part of a UTF-8 letter
  return fmt::format("{}~{:016x}", name.substr(0, kept), hash);
}

AtomicFile::AtomicFile(const std::string& path, bool named) : path_(follow_links(path)) {
  const std::size_t slash = path_.rfind('/');
  folder_ = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  file_ = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  LOCKSTEP_CHECK(!file_.empty(), "cannot write '{}': it names a folder, expected a file", path_);
  struct stat old {};
  const bool replaces = ::lstat(path_.c_str(), &old) == 0;
  if (!replaces && errno != ENOENT) fail(errno);
  if (replaces && S_ISDIR(old.st_mode)) fail(EISDIR);
  LOCKSTEP_CHECK(!replaces || S_ISREG(old.st_mode),
                 "cannot write {}: a device, pipe or socket has this name; expected a new name or that of a file",
                 path_);
  remove_leftovers(folder_, [own = shortened(file_, kLongest)](std::string_view name) { return name == own; });

  if (!named && ::access("/proc/self/fd", F_OK) == 0)
    descriptor_.reset(::open(folder_.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
  for (int i = 0; !descriptor_ && i < kAttempts; ++i) {
    std::string name = temporary_name();
    descriptor_.reset(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (descriptor_)
      temporary_ = std::move(name);
    else if (errno != EEXIST)
      break;
  }
  if (!descriptor_) fail(errno);
  ::flock(descriptor_.get(), LOCK_EX | LOCK_NB);  // a file system without locks keeps its leftovers
  if (replaces) take_over(old);
}

AtomicFile::~AtomicFile() {
  if (made_in_.is_here() && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(int error) const {
  std::string advice;
  if (error == EFBIG) advice = "; raise the limit on the size of files (ulimit -f)";
  if (error == ENOSPC || error == EDQUOT) {
    struct statvfs disk {};
    const bool known = ::statvfs(folder_.c_str(), &disk) == 0 && disk.f_blocks > 0;
    const auto in_units = [](double bytes) {
      return bytes < 1e6 ? fmt::format("{:.1f} kB", bytes / 1e3) : fmt::format("{:.1f} MB", bytes / 1e6);
    };
    if (size_ > 0) advice = fmt::format("; it takes {}", in_units(static_cast<double>(size_)));
    struct stat own {};  // which has perhaps taken what was left
    if (known && error == ENOSPC && ::fstat(descriptor_.get(), &own) == 0)
      advice += fmt::format("{} {} are free there", size_ > 0 ? ", and" : ";",
                            in_units(static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize) +
                                     static_cast<double>(own.st_blocks) * 512.0));
    advice += "; free some space, or name another place";
  }
  detail::throw_error(fmt::format("cannot write {}: {}{}", path_, std::strerror(error), advice));
}

std::string AtomicFile::temporary_name() const {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) fail(errno);
  return fmt::format("{}/.{}.{:016x}{}", folder_, shortened(file_, kLongest), random, kEnding);
}

void AtomicFile::remove_leftovers(const std::string& folder, const std::function<bool(std::string_view)>& is_one) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (!entries) return;  // it may be that one can write there, but not list
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = named_by(entry->d_name);
    if (name.empty() || !is_one(name)) continue;
    const std::string path = folder + "/" + entry->d_name;
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat info {};
    if (file && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0)
      ::unlink(path.c_str());
  }
}

void AtomicFile::take_over(const struct stat& old) const {
  // Another's file may be replaced by whoever may write the folder, but only root can hand the new one over.
  if (::fchown(descriptor_.get(), old.st_uid, old.st_gid) != 0 && errno != EPERM) fail(errno);
  if (::fchmod(descriptor_.get(), old.st_mode & 07777) != 0) fail(errno);
}

void AtomicFile::reserve(std::size_t bytes) {
  if (!try_reserve(bytes)) fail(errno);
}

bool AtomicFile::try_reserve(std::size_t bytes) {
  size_ = std::max(size_, bytes);
  if (bytes == 0) return true;
  if (rlimit most{}; ::getrlimit(RLIMIT_FSIZE, &most) == 0 && bytes > most.rlim_cur) {  // fallocate() looks at it late
    errno = EFBIG;
    return false;
  }
  const FileSizeErrors errors_only;
  // What writes it in blocks of zeros where the file system cannot do that (posix_fallocate) would cost more than it
  // tells.
  int result = 0;
  do result = ::fallocate(descriptor_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
  while (result != 0 && errno == EINTR);
  return result == 0 || (errno != ENOSPC && errno != EDQUOT);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (!write_all(descriptor_.get(), data, bytes)) fail(errno);
}

void AtomicFile::write_at(std::size_t offset, const void* data, std::size_t bytes) {
  const FileSizeErrors errors_only;
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(descriptor_.get(), at, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(n == 0 ? EIO : errno);
    at += n;
    offset += static_cast<std::size_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void AtomicFile::resize(std::size_t bytes) {
  size_ = std::max(size_, bytes);
  const FileSizeErrors errors_only;
  if (::ftruncate(descriptor_.get(), static_cast<off_t>(bytes)) != 0) fail(errno);
}

void AtomicFile::take_temporary_name() {
  for (int i = 0; temporary_.empty(); ++i) {
    std::string name = temporary_name();
    if (::linkat(AT_FDCWD, own_link(descriptor_.get()).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0)
      temporary_ = std::move(name);
    else if (errno != EEXIST || i == kAttempts)
      fail(errno);
  }
}

void AtomicFile::rehearse() {
  take_temporary_name();
  struct stat there {};
  if (::lstat(path_.c_str(), &there) != 0 || !S_ISREG(there.st_mode)) return;
  // Of a file this does nothing, and before the system says that it is no folder it looks whether its name may be taken
  // away, which is what rename() needs: another user's file in a sticky folder, or an immutable one, is not replaced.
  if (::rmdir(path_.c_str()) == 0 || errno == ENOTDIR) return;
  LOCKSTEP_CHECK(errno != EPERM,
                 "cannot write {}: the file that is there cannot be replaced (it belongs to another user, in a folder "
                 "where each replaces their own alone, or is marked immutable); name another",
                 path_);
  if (errno == EACCES || errno == EROFS) fail(errno);
}

void AtomicFile::commit() {
  if (::fsync(descriptor_.get()) != 0) fail(errno);
  take_temporary_name();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  temporary_.clear();
  const int closed = ::close(descriptor_.release());
  if (closed != 0 && errno != EINTR) fail(errno);
  // The new name itself reaches the disk with the folder. Some file systems cannot sync one; the file is whole anyway.
  if (const FileDescriptor folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); folder)
    ::fsync(folder.get());
}

}  // namespace lockstep
