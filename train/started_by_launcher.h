#pragma once

// For .cpp files only.

#include <cstdlib>

#include "lockstep/core/environment.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"

namespace lockstep::train {

/// True if a launcher started this process as one of several (lockstep-run, torchrun, Open MPI, Slurm).
inline bool started_by_launcher() {
  const auto launcher = distributed::read_launcher(current_environment());
  return launcher.world_size.value_or(1) > 1 || std::getenv("LOCKSTEP_STORE_HOSTED") != nullptr;
}

}  // namespace lockstep::train
