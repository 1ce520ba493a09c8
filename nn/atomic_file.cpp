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
  descriptor_.reset(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!descriptor_) fail("write", errno);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what, int error) const {
  lockstep::detail::throw_error(fmt::format("cannot {} {}: {}", what, path_, std::strerror(error)));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (!write_all(descriptor_.get(), data, bytes)) fail("write", errno);
}

void AtomicFile::commit() {
  if (::fsync(descriptor_.get()) != 0) fail("write", errno);
  const int closed = ::close(descriptor_.release());
  if (closed != 0 && errno != EINTR) fail("write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write", errno);
  temporary_.clear();
  // The new name itself reaches the disk with the folder. Some file systems cannot sync one; the file is whole anyway.
  if (const FileDescriptor folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); folder)
    ::fsync(folder.get());
}

}  // namespace lockstep::nn::detail
