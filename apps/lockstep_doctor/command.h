#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/core/environment.h"

namespace lockstep::doctor {

constexpr int kNoSuchProgram = 127;

struct CommandResult {
  int status = -1;     ///< exit status; 128 + N for signal N; kNoSuchProgram
  std::string output;  ///< stdout and stderr, the first 64 KiB
};

/// Runs a program, found in PATH, with `environment` over this process's own, to its end or to the deadline, when it
/// and its process group are killed.
CommandResult run_command(const std::vector<std::string>& command, const Environment& environment,
                          std::chrono::milliseconds timeout);

}  // namespace lockstep::doctor
