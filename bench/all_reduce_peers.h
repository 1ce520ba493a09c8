#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::bench {

/// One way to sum up floats over the ranks.
struct Contestant {
  std::string name;
  /// For one size: gives the function that sums up `count` floats in place.
  std::function<std::function<void()>(float* data, std::int64_t count)> prepare;
};

/// Gloo's own algorithms, each on connections of its own; the ranks meet in `folder`. Empty if this build has no Gloo.
std::vector<Contestant> raw_gloo(int rank, int world_size, const std::string& folder);
/// MPI_Allreduce; MPI must have been initialised. Empty if this build has no MPI.
std::vector<Contestant> raw_mpi();

}  // namespace lockstep::bench
