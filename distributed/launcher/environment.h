#pragma once

#include <string>
#include <vector>

#include "lockstep/core/environment.h"

namespace lockstep::launcher {

/// As "NAME=value" strings.
std::vector<std::string> to_strings(const Environment& environment);

/// What every worker of a group shares, and what tells one worker from another.
struct Placement {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;
  int master_port = 0;
  std::string token;
  int restart_count = 0;
  std::string job = {};
  bool elastic = false;
  std::string failure_pipe;  ///< see FailureReports
};

/// `base` with the variables that run() promises.
Environment worker_environment(Environment base, const Placement& placement);

/// Cores that this process may run on.
int usable_cores();

/// The file that `program` names: itself if it holds a slash, else the first match in PATH. Throws Error.
std::string find_program(const std::string& program);

}  // namespace lockstep::launcher
