#include "lockstep/train/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "lockstep/core/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/posix.h"
#include "lockstep/nn/safetensors.h"

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;

std::string free_name(const std::string& path) {
  const std::size_t slash = path.rfind('/') + 1;  // 0 without
  const auto name = [&](const std::string& ending) {
    return path.substr(0, slash) + shortened(path.substr(slash), kLongestName - ending.size()) + ending;
  };
  std::string free = name(".rescued");
  for (int i = 2; ::access(free.c_str(), F_OK) == 0; ++i) free = name(fmt::format(".rescued{}", i));
  return free;
}

/// What tells a file from others, whatever it is called: its number on its device, else where the path leads.
std::string identity(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return fmt::format("{} on {}", info.st_ino, info.st_dev);
  std::error_code error;
  fs::path target = path;
  for (int i = 0; i < 40 && fs::is_symlink(fs::symlink_status(target, error)); ++i) {
    const fs::path next = fs::read_symlink(target, error);
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  const fs::path folder = fs::weakly_canonical(fs::absolute(target, error).parent_path(), error);
  return (folder / target.filename()).string();
}

/// Several may share what is no file: /dev/null, a terminal.
bool is_file_or_nothing(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

using Trial = std::vector<std::unique_ptr<AtomicFile>>;

/// Throws Error unless all of the output's files fit at a time.
Trial take_space(const std::string& path, const Output& output) {
  Trial trial;
  while (trial.size() < output.files) {
    trial.push_back(std::make_unique<AtomicFile>(path));
    try {
      trial.back()->reserve(output.bytes);
    } catch (const Error& error) {
      if (output.files == 1) throw;
      throw Error(
          fmt::format("{}; {} files of that size must fit there, since the next is written before the oldest goes{}",
                      error.what(), output.files, output.files > 2 ? ": or keep fewer (--keep-checkpoints)" : ""));
    }
  }
  return trial;
}

/// Lines come one by one, so that how many there will be is not known; a disk that is full already takes none.
bool is_full(int file) {
  struct statvfs disk {};
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || ::fstatvfs(file, &disk) != 0) return false;
  return disk.f_blocks > 0 && (::geteuid() == 0 ? disk.f_bfree : disk.f_bavail) == 0;  // some is kept for root
}

/// Returns what holds the space of a new file.
Trial try_output(const Output& output) {
  const std::string& what = output.what;
  const std::string& path = output.path;
  std::string reason;
  Trial trial;
  if (path.ends_with('/')) {
    std::error_code error;
    fs::path folder = fs::absolute(path, error).parent_path();
    while (folder.has_relative_path() && !fs::exists(folder, error)) folder = folder.parent_path();
    if (!fs::is_directory(folder, error))
      reason = fmt::format("{} is no folder", folder.string());
    else if (::access(folder.c_str(), W_OK | X_OK) != 0)
      reason = fmt::format("cannot write into {}: {}", folder.string(), std::strerror(errno));
    try {
      if (reason.empty() && output.bytes > 0) trial = take_space((folder / "new file").string(), output);
    } catch (const Error& error) {
      reason = error.what();
    }
  } else if (output.whole) {
    try {
      const bool replaces = ::access(path.c_str(), F_OK) == 0;
      trial = take_space(path, output);
      trial.front()->rehearse();
      trial.resize(output.checkpoint ? output.left : replaces ? 0 : 1);  // the space of others becomes free
    } catch (const Error& error) {
      reason = error.what();
    }
  } else {
    // O_NONBLOCK: a pipe that nobody reads is refused, where opening it would wait.
    const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
    if (file && is_full(file.get()))
      reason = fmt::format("cannot write {}: {}; free some space, or name another place", path, std::strerror(ENOSPC));
    if (!file)
      reason = errno == ENXIO ? fmt::format("cannot write {}: it is a pipe that nobody reads", path)
                              : fmt::format("cannot write {}: {}", path, std::strerror(errno));
  }
  LOCKSTEP_CHECK(reason.empty(), "[run] the {} '{}' could not be written later: {}; nothing has been computed yet",
                 what, path, reason);
  return trial;
}

}  // namespace

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path place = path.empty() ? fs::path() : fs::absolute(path, error);
  return error ? path : place.string();
}

bool is_training_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  try {
    return nn::is_checkpoint(nn::SafetensorsFile(path));
  } catch (const Error&) {
    return false;
  }
}

void try_outputs(const std::vector<Output>& outputs) {
  std::map<std::string, const Output*> seen;
  for (const Output& output : outputs) {
    if (output.path.empty() || output.path.ends_with('/') || !is_file_or_nothing(output.path)) continue;
    LOCKSTEP_CHECK(output.checkpoint || !is_training_checkpoint(output.path),
                   "[run] the {} would overwrite '{}', which is a training checkpoint; name another file, or delete "
                   "it; nothing has been computed yet",
                   output.what, output.path);
    const auto [other, is_new] = seen.emplace(identity(output.path), &output);
    LOCKSTEP_CHECK(is_new,
                   "[run] the {} '{}' and the {} '{}' are the same file; give each its own; nothing has been computed "
                   "yet",
                   other->second->what, other->second->path, output.what, output.path);
  }
  // Files of a folder that will be made with it have no place to be tried at yet.
  std::set<std::string> folders;
  for (const Output& output : outputs)
    if (output.path.ends_with('/')) folders.insert(identity(output.path.substr(0, output.path.size() - 1)));
  std::vector<Trial> held;  // all of them at a time: several may share a disk
  for (const Output& output : outputs) {
    const fs::path parent = fs::path(output.path).parent_path();
    std::error_code ignored;
    if (output.path.empty() || (!output.path.ends_with('/') && !parent.empty() && !fs::exists(parent, ignored) &&
                                folders.contains(identity(parent.string()))))
      continue;
    held.push_back(try_output(output));
  }
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

}  // namespace lockstep::training
