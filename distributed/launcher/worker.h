#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/distributed/launcher/output.h"

namespace lockstep::launcher {

/// What to start, and where its output goes.
struct WorkerSpec {
  std::string program;                 ///< a file; see find_program()
  std::function<int()> function = {};  ///< called in a copy of this very process, instead of a program
  std::vector<std::string> arguments;  ///< argv, argv[0] included
  std::vector<std::string> environment;
  int rank = 0;
  bool inherit_stdout = false;
  std::string prefix;
  std::string stdout_log;  ///< empty: none
  std::string stderr_log;
  int inherited = -1;  ///< a descriptor that the worker is to have under the same number; -1: none
  bool truncate_logs = true;
};

/// How a worker ended.
struct Ending {
  int exit_status = 0;  ///< 128 + N for signal N
  int signal = 0;
  bool unknown = false;  ///< another part of this program has waited for it, and knows
  bool failed() const { return exit_status != 0; }
};

/// One worker process, leader of its own process group.
class Worker {
 public:
  /// Starts it; its lines go to `outlets`, which must outlive it. Throws Error if the program cannot be executed. A
  /// function's process ends with what the function returns, by _exit().
  Worker(const WorkerSpec& spec, Outlets& outlets);
  Worker(Worker&&) = default;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool alive() const { return !ending_; }
  const std::optional<Ending>& ending() const { return ending_; }
  Stream& out() { return out_; }
  Stream& err() { return err_; }

  /// True if the process has ended and waits to be reaped, or is gone: another part of this program has reaped it.
  bool has_ended() const;
  /// True once each time that it has been stopped (SIGSTOP, a debugger).
  bool has_stopped();
  /// Waits for it to end.
  void reap();
  /// To the whole process group. Nothing happens once it was reaped.
  void signal(int signal);
  /// To the process alone, and only if it has a handler for the signal, which would else end it.
  void pass_on(int signal) const;

 private:
  int rank_;
  pid_t pid_;
  std::optional<Ending> ending_;
  Stream out_;
  Stream err_;
};

}  // namespace lockstep::launcher
