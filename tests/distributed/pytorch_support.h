#pragma once

// What tests under PyTorch's names share: groups of a job's ranks, and PyTorch's values, of which the source has 2 and
// every other rank 10.

#include <cmath>
#include <functional>

#include "tests/distributed/process_group_support.h"

namespace lockstep::testing {

using distributed::ProcessGroupPtr;
using distributed::ReduceOp;

inline constexpr int kWorld = 4;
enum class Who { job, full_group, group };

/// Runs body on the ranks of the whole job, of a group of all, or of a group of the last three.
inline void run_as(Who who, const std::function<void(ProcessGroup&)>& body) {
  run_ranks(kWorld, Link::shm, [&](ProcessGroup& job) {
    if (who == Who::job) return body(job);
    const ProcessGroupPtr group = job.split(who == Who::group && job.rank() == 0 ? -1 : 0);
    if (group) body(*group);
    job.barrier()->wait();
  });
}

inline double reduced(ReduceOp op, int world) {
  switch (op) {
    case ReduceOp::product:
      return 2 * std::pow(10, world - 1);
    case ReduceOp::min:
      return 2;
    case ReduceOp::max:
      return 10;
    default:
      return 2 + 10 * (world - 1);
  }
}

}  // namespace lockstep::testing
