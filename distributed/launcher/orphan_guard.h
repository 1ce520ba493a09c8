#pragma once

#include <sys/types.h>

#include "lockstep/core/posix.h"

namespace lockstep::launcher {

/// Note [No orphans]
/// A launcher that dies by SIGKILL can clean up nothing itself. Two things do it for it. Each worker asks the kernel
/// for SIGKILL at its parent's death (PR_SET_PDEATHSIG, tied to the thread that started it), which reaches the worker
/// at once but not what the worker started: a shell script's child would live on. So a small guard process holds the
/// read end of a pipe whose write end only the launcher has. It learns each worker's process group from that pipe, and
/// when the pipe ends, because the launcher is gone, kills the groups that are left.
class OrphanGuard {
 public:
  /// Forks the guard. Throws Error.
  OrphanGuard();
  /// Ends the guard; groups still listed are killed.
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  void add(pid_t group) { send(group); }
  /// To be called before the group's leader is reaped, while its number cannot belong to anyone else.
  void remove(pid_t group) { send(-group); }

 private:
  void send(pid_t message);

  FileDescriptor pipe_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launcher
