#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/distributed/collectives/transport.h"

namespace lockstep::distributed::mpi {

/// True once a transport was aborted: then MPI_Finalize would wait for ranks that do not come.
bool any_aborted();

/// A transport between all ranks of MPI_COMM_WORLD, after MPI's start; every rank must make it, and Error is thrown
/// where they do not by the deadline, or this build has no MPI. `tags`: how many of MPI's tags it uses, at most those
/// that there are; 0: all.
std::unique_ptr<Transport> make_mpi_transport(Deadline deadline, std::uint64_t tags = 0);

}  // namespace lockstep::distributed::mpi
