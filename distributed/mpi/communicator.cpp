#include "lockstep/distributed/mpi/communicator.h"

#include <array>
#include <memory>
#include <thread>

#include "lockstep/core/check.h"

namespace lockstep::distributed::mpi {

std::mutex& mpi_mutex() {
  static std::mutex mutex;
  return mutex;
}

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  LOCKSTEP_CHECK(false, "[mpi] {} failed: {}", what, text.data());
}

MPI_Comm new_communicator(Deadline deadline) {
  struct Pending {
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  auto pending = std::make_unique<Pending>();
  {
    const std::lock_guard lock(mpi_mutex());
    check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &pending->made, &pending->request), "MPI_Comm_idup");
  }
  for (int done = 0;;) {
    {
      const std::lock_guard lock(mpi_mutex());
      check_mpi(MPI_Test(&pending->request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      if (done) check_mpi(MPI_Comm_set_errhandler(pending->made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
      if (done) return pending->made;
    }
    if (has_passed(deadline)) static_cast<void>(pending.release());  // MPI may write to it yet
    LOCKSTEP_CHECK(pending, "[mpi] MPI_Comm_idup has not ended within the timeout; have all ranks come?");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace lockstep::distributed::mpi
