#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::launcher {

/// How the workers' output reaches the launcher's own stdout and stderr.
enum class Output {
  /// Whole lines, each with its rank in front: "[0] epoch 1 ...".
  prefixed,
  /// Rank 0 writes to the launcher's stdout itself (so a progress bar finds its terminal), unless that is a pipe, whose
  /// reader must not hold it up (Note [Slow readers]): then it comes through byte by byte. Its stderr comes through
  /// unchanged; the other ranks' lines are prefixed.
  rank0_plain,
};

/// Options of spawn().
struct SpawnOptions {
  Output output = Output::rank0_plain;  ///< how the processes' output reaches this one's
  /// Folder for the files rank<R>.out and rank<R>.err; empty: none.
  std::string log_dir = {};
  /// Time between asking the other ranks to end and SIGKILL, after a failure, SIGINT or SIGHUP.
  std::chrono::milliseconds kill_after{4000};
  std::chrono::milliseconds after_sigterm{30000};  ///< the same after SIGTERM: ranks may have something to save
};

/// A rank failed. what() names it and says what it said itself.
class SpawnError : public Error {
 public:
  SpawnError(const std::string& message, int rank, int exit_status, int signal)
      : Error(message), rank_(rank), exit_status_(exit_status), signal_(signal) {}

  /// The rank that failed first.
  int rank() const { return rank_; }
  /// 1 for an exception; 128 + N for signal N.
  int exit_status() const { return exit_status_; }
  /// The signal that ended it; 0: none.
  int signal() const { return signal_; }

 private:
  int rank_;
  int exit_status_;
  int signal_;
};

/// Note [Spawn]
/// The processes are copies of this one (fork without exec), so the function may use everything that was there before:
/// captured variables, data sets in memory, open files. What a copy lacks is this process's other threads, and devices:
/// call spawn() before this process has started threads of its own and before it has touched a GPU. Threads of the
/// library's pool are no obstacle; each copy starts its own. The library's own descriptors are closed in the copies.
///
/// Runs function(rank) in `nprocs` processes, each set up as by run(): `distributed::init()` joins them. Returns when
/// all have returned. An exception that leaves the function ends its process with status 1; its message is passed on.
/// When one fails the others are ended, and SpawnError tells of the first. Buffers of stdio are flushed at a process's
/// end and a profile is written (LOCKSTEP_PROFILE), but neither exit handlers nor destructors of static objects run.
/// SIGINT, SIGTERM and SIGHUP are forwarded; when the processes have ended, the signal is raised again here, also one
/// that comes while their last lines wait for a reader, which gives those up. No process outlives this one, not even if
/// it is killed.
///
/// Not thread-safe: one call at a time in a process, and none beside run(). Throws Error if `nprocs` is below 1 or a
/// process or the store cannot be started, or if all went well but not all that was printed could be written.
///
/// As torch.multiprocessing.spawn, except that ranks can also meet.
void spawn(const std::function<void(int rank)>& function, int nprocs, const SpawnOptions& options = {});

}  // namespace lockstep::launcher
