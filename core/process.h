#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {

/// A process to be started.
struct ProcessSpec {
  std::string program = {};                   ///< a file
  std::vector<std::string> arguments = {};    ///< argv, argv[0] included
  std::vector<std::string> environment = {};  ///< "NAME=value"
  /// Called in a copy of this very process, which ends with what it returns, instead of a program.
  std::function<int()> function = {};
  int in = -1;  ///< what becomes its stdin, stdout and stderr; -1: those of this process
  int out = -1;
  int err = -1;
  int inherited = -1;  ///< a further descriptor that it is to have under the same number; -1: none
  /// The process is killed when the thread that starts it ends, as it does with this process.
  bool ends_with_parent = false;
  /// How long it may take from fork() until it executes `program` or is about to call `function`.
  std::chrono::milliseconds start_timeout{60'000};
};

/// Starts it as the leader of its own process group, with no signal blocked and those that launchers and libraries
/// catch back at their defaults, and returns its PID, which is to be waited for. Throws Error if the system does not
/// allow another process, or `program` cannot be executed, or the process has not begun within start_timeout (somebody
/// may have stopped it), in which case it is killed.
pid_t start_process(const ProcessSpec& spec);

}  // namespace lockstep
