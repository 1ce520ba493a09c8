#include "lockstep/core/check.h"
#include "lockstep/distributed/mpi/mpi.h"
#include "lockstep/distributed/mpi/mpi_transport.h"

namespace lockstep::distributed::mpi {

bool is_available() {
  return false;
}

ProcessGroupPtr make_process_group(const StorePtr&, const ProcessGroupOptions&) {
  LOCKSTEP_CHECK(false,
                 "[mpi] this build has no MPI; install libopenmpi-dev and openmpi-bin and configure with "
                 "LOCKSTEP_MPI=ON");
  return nullptr;
}

std::unique_ptr<Transport> make_mpi_transport(Deadline, std::uint64_t) {
  throw Error("[mpi] this build has no MPI");
}

}  // namespace lockstep::distributed::mpi
