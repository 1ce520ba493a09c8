#include "lockstep/nn/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::nn::detail {

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> counter{0};
  const std::size_t slash = path_.rfind('/');
  folder_ = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  const std::string file = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  LOCKSTEP_CHECK(!file.empty(), "cannot write '{}': it names a folder, expected a file", path_);
  struct stat info {};
  if (::stat(path_.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) fail("write", EISDIR);
  temporary_ = fmt::format("{}/.{}.{}.{}.tmp", folder_, file, ::getpid(), counter++);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("write", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what, int error) const {
  lockstep::detail::throw_error(fmt::format("cannot {} {}: {}", what, path_, std::strerror(error)));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // Linux writes at most 2 GiB a call
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(descriptor_, at, bytes < kMost ? bytes : kMost);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", errno);
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("write", errno);
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 && errno != EINTR) fail("write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write", errno);
  temporary_.clear();
  // The new name itself reaches the disk with the folder. Some file systems cannot sync one; the file is whole anyway.
  if (const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

}  // namespace lockstep::nn::detail
