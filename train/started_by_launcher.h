#pragma once

// For .cpp files only.

#include <cstdlib>

#include "lockstep/core/environment.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"

namespace lockstep::training {

/// True if a launcher started this process as one of several (lockstep-run, torchrun, Open MPI, Slurm).
inline bool started_by_launcher() {
  const auto launcher = distributed::read_launcher(current_environment());
  return launcher.world_size.value_or(1) > 1 || std::getenv("LOCKSTEP_STORE_HOSTED") != nullptr;
}

/// True if this process has a rank in a job of a size that nobody says: RANK without WORLD_SIZE, or what PMIx alone
/// tells. It may be one of several, and must not train for itself; joining the job says what is missing.
inline bool has_rank_alone() {
  const auto launcher = distributed::read_launcher(current_environment());
  return launcher.rank && !launcher.world_size;
}

}  // namespace lockstep::training
