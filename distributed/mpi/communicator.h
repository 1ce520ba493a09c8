#pragma once

#include <mpi.h>

#include <mutex>

#include "lockstep/core/deadline.h"

namespace lockstep::distributed::mpi {

/// MPI's calls of all threads, one at a time: then MPI_THREAD_SERIALIZED is enough.
std::mutex& mpi_mutex();

/// Throws Error with MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* what);

/// One more communicator of all ranks, which must all call this; its errors are returned. Takes the mutex from time to
/// time only, so that operations on other communicators go on. Throws Error where the others do not come by the
/// deadline.
MPI_Comm new_communicator(Deadline deadline);

}  // namespace lockstep::distributed::mpi
