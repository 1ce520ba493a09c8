#pragma once

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed::mpi {

/// True if this build has the MPI backend.
bool is_available();

/// Makes a process group whose messages MPI carries. The processes must have been started by mpirun, or by another
/// launcher that MPI understands, with MPI's ranks; MPI is initialised here unless it is already, and ended at exit.
/// Collective: blocks until all ranks have come to `store`, which must be empty of keys of other groups. Throws Error,
/// naming the ranks that did not come by the deadline, or if MPI sees other ranks, or if this build has no MPI.
ProcessGroupPtr make_process_group(const StorePtr& store, const ProcessGroupOptions& group);

}  // namespace lockstep::distributed::mpi
