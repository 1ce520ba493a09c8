#include "lockstep/distributed/parallel/held_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::distributed {
namespace {

// In this order in Numbers; the number drawn at random is none of an empty one's.
enum : std::size_t { kPid, kDescriptor, kDevice, kInode, kSignDescriptor, kRandom };

struct Sign {
  std::int64_t random = 0;
  std::int64_t rank = -1;
};

FileDescriptor open_there(std::int64_t pid, std::int64_t descriptor) {
  return FileDescriptor(::open(fmt::format("/proc/{}/fd/{}", pid, descriptor).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

HeldFile::HeldFile(int descriptor, int rank) {
  struct stat status {};
  Sign sign{.rank = rank};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) return;
  if (::getrandom(&sign.random, sizeof sign.random, 0) != sizeof sign.random || sign.random == 0) return;
  sign_.reset(::memfd_create("held_file", MFD_CLOEXEC));
  if (!sign_ || !write_all(sign_.get(), &sign, sizeof sign)) return;
  numbers_ = {
      ::getpid(),  descriptor, static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
      sign_.get(), sign.random};
}

FileDescriptor HeldFile::open(const Numbers& numbers, int rank) {
  if (numbers[kRandom] == 0) return {};
  const FileDescriptor sign = open_there(numbers[kPid], numbers[kSignDescriptor]);
  Sign found;
  if (!sign || read_all_at(sign.get(), &found, sizeof found, 0) != sizeof found) return {};
  if (found.random != numbers[kRandom] || found.rank != rank) return {};
  FileDescriptor here = open_there(numbers[kPid], numbers[kDescriptor]);
  struct stat status {};
  const bool same = here && ::fstat(here.get(), &status) == 0 &&
                    static_cast<std::int64_t>(status.st_dev) == numbers[kDevice] &&
                    static_cast<std::int64_t>(status.st_ino) == numbers[kInode];
  return same ? std::move(here) : FileDescriptor();
}

}  // namespace lockstep::distributed
