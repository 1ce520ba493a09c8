#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "apps/lockstep_doctor/finding.h"

namespace lockstep::doctor {

/// What is examined beyond this machine by itself.
struct Request {
  /// A port that a job is to use here (MASTER_PORT).
  std::optional<int> port = {};
  /// A machine that this one has to reach (MASTER_ADDR).
  std::string peer = {};
  /// Deadline of each attempt to reach something.
  std::chrono::milliseconds timeout{10'000};
};

/// Cores, memory, GPUs, and whether GPUs reach each other's memory.
Findings check_devices();
/// What this build has, which files serve it, and the limits of this process.
Findings check_libraries();
/// Addresses and names of this machine.
Findings check_interfaces(const Request& request);
/// The job's store, on a free port and on the one that is asked for, and the way to another machine.
Findings check_ports(const Request& request);
/// Memory that processes share.
Findings check_shared_memory();
/// Two processes add up 1 MB, with each backend of this build. Forks: to be called before any thread is started.
/// `program`: this program's path, for mpirun.
Findings check_all_reduce(const Request& request, const std::string& program);

/// What mpirun runs: one rank of that all-reduce. Prints one line.
int run_mpi_rank(const Request& request);

}  // namespace lockstep::doctor
