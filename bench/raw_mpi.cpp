#include <mpi.h>

#include "bench/all_reduce_peers.h"

namespace lockstep::bench {

std::vector<Contestant> raw_mpi() {
  return {{"raw MPI_Allreduce", [](float* data, std::int64_t count) -> std::function<void()> {
             return [data, count] {
               MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
             };
           }}};
}

}  // namespace lockstep::bench
