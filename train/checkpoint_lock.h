#pragma once

// For .cpp files only.

#include <string>

#include "lockstep/core/own_process.h"
#include "lockstep/core/posix.h"

namespace lockstep::training {

/// Keeps two trainings from writing one checkpoint, each over the other's. While one lives, a file beside the
/// checkpoint
/// (".NAME.lock") is locked (flock), so that the lock goes with the process that holds it, however it ends; the file
/// tells who that is. On a file system without locks there is none.
class CheckpointLock {
 public:
  /// Throws Error, with the process and its machine, if another training holds the lock of `path`, which is called
  /// `what`.
  explicit CheckpointLock(const std::string& path, const std::string& what = "checkpoint");
  ~CheckpointLock();
  CheckpointLock(const CheckpointLock&) = delete;
  CheckpointLock& operator=(const CheckpointLock&) = delete;

 private:
  OwnProcess made_in_;
  std::string file_;
  FileDescriptor descriptor_;  ///< invalid: no lock can be had there
};

}  // namespace lockstep::training
