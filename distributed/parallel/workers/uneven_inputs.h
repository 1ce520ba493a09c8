#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Note [Uneven inputs]
/// Ranks that each bring samples of their own (files of different lengths, streams) run out of them at different times.
/// A rank that has run out must go on taking part in the others' collectives, or they wait for it in vain; and the
/// average of what ranks computed from different numbers of samples must be weighted by these. So before each step all
/// ranks tell each other how many samples they have for it: one number each, a few microseconds. A step in which no
/// rank has any is the end, which all see in the same place.
///
/// DistributedDataParallel::join_step() does this for loops that every rank runs to the end, join() for PyTorch's
/// idiom, in which each rank leaves its loop when it has run out. Batches of a loader that knows all ranks need
/// neither.
struct UnevenStep {
  std::int64_t samples = 0;  ///< of all ranks
  int ranks = 0;             ///< that have not run out
  int first = -1;            ///< the first with samples; without any, the first that has not run out

  /// A collective. `own`: samples of this rank; nothing: it has run out.
  static UnevenStep meet(ProcessGroup& group, std::optional<std::int64_t> own);
  /// What a mean over `own` samples is to be multiplied by, so that the average over ranks is the mean over all.
  double weight(std::int64_t own, int world) const;
};

}  // namespace lockstep::distributed
