#include "lockstep/train/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/posix.h"
#include "lockstep/nn/atomic_file.h"

namespace lockstep::train {
namespace {

std::string free_name(const std::string& path) {
  std::string name = path + ".rescued";
  for (int i = 2; ::access(name.c_str(), F_OK) == 0; ++i) name = fmt::format("{}.rescued{}", path, i);
  return name;
}

}  // namespace

void try_output(const std::string& what, const std::string& path, bool whole) {
  if (path.empty()) return;
  std::string reason;
  if (whole) {
    try {
      const nn::detail::AtomicFile trial(path);
    } catch (const Error& error) {
      reason = error.what();
    }
  } else {
    // O_NONBLOCK: a pipe that nobody reads is refused, where opening it would wait.
    const FileDescriptor trial(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
    if (!trial)
      reason = errno == ENXIO ? fmt::format("cannot write {}: it is a pipe that nobody reads", path)
                              : fmt::format("cannot write {}: {}", path, std::strerror(errno));
  }
  LOCKSTEP_CHECK(reason.empty(), "[run] the {} '{}' could not be written later: {}; nothing has been computed yet",
                 what, path, reason);
}

std::string write_somewhere(const std::string& path, const std::function<void(const std::string& path)>& write,
                            std::string& failure) {
  failure.clear();
  try {
    write(path);
    return path;
  } catch (const Error& error) {
    failure = error.what();
  }
  for (const std::string& place : {free_name(path), free_name(path.substr(path.rfind('/') + 1))}) {
    try {
      write(place);
      return place;
    } catch (const Error&) {
    }
  }
  throw Error(failure);
}

}  // namespace lockstep::train
