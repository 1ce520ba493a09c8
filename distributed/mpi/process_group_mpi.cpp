#include <mpi.h>

#include <cstdlib>
#include <mutex>

#include "lockstep/core/check.h"
#include "lockstep/distributed/mpi/communicator.h"
#include "lockstep/distributed/mpi/mpi.h"
#include "lockstep/distributed/mpi/mpi_transport.h"
#include "lockstep/distributed/process_group/meeting.h"
#include "lockstep/distributed/process_group/transport_executor.h"
#include "lockstep/distributed/store/prefix_store.h"

namespace lockstep::distributed::mpi {
namespace {

/// Note [MPI]
/// MPI moves bytes for us, as Gloo does, on communicators of this group's own; the collectives are ours.
/// - How a message finds its receive is told in Note [MPI messages].
/// - MPI has no deadlines: a wait looks, and sleeps longer and longer between its looks.
/// - An MPI launcher ends all ranks when one has died.

void end_mpi() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (!ended && !any_aborted()) MPI_Finalize();
}

void start_mpi() {
  const std::lock_guard lock(mpi_mutex());
  int started = 0, ended = 0, threads = MPI_THREAD_SINGLE;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  LOCKSTEP_CHECK(!ended, "[mpi] MPI has been finalized in this process; make the group before that");
  if (started) {
    MPI_Query_thread(&threads);
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "MPI_Init_thread");
    std::atexit(end_mpi);
  }
  LOCKSTEP_CHECK(threads >= MPI_THREAD_SERIALIZED,
                 "[mpi] MPI was initialised for one thread; initialise it with MPI_THREAD_MULTIPLE, or leave it to "
                 "lockstep");
}

bool is_started_by_mpi() {
  int started = 0;
  MPI_Initialized(&started);
  if (started) return true;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (std::getenv(name)) return true;
  return false;
}

}  // namespace

bool is_available() {
  return true;
}

ProcessGroupPtr make_process_group(const StorePtr& store, const ProcessGroupOptions& group) {
  LOCKSTEP_CHECK(store, "[mpi] needs a store to meet the other ranks; found none");
  LOCKSTEP_CHECK(is_started_by_mpi(),
                 "[mpi] this process was not started by MPI; start the job as mpirun -n {} PROGRAM, or use another "
                 "backend",
                 group.world_size);
  // MPI's own start has no deadline, so all must be here.
  meet(*store, group, "mpi");
  start_mpi();
  int rank = -1, world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  LOCKSTEP_CHECK(
      rank == group.rank && world_size == group.world_size,
      "[mpi] this is rank {} of {} to MPI, and rank {} of {} to the job; start all processes of the job with "
      "one mpirun, and unset RANK and WORLD_SIZE",
      rank, world_size, group.rank, group.world_size);
  return make_transport_group("mpi", group, make_mpi_transport(deadline_in(group.timeout)),
                              std::make_shared<PrefixStore>("monitor", store));
}

}  // namespace lockstep::distributed::mpi
