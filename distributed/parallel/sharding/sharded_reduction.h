#pragma once

#include <memory>

#include "lockstep/distributed/parallel/reduction/rank_reduction.h"
#include "lockstep/distributed/parallel/sharding/division.h"

namespace lockstep::distributed {

/// Reduces each flat's gradients so that every rank gets its block of the result alone, in Flat::gradient, where the
/// passes since Division::clear_gradients() add up; the parameters themselves have no gradient then. The memory in
/// which a flat's gradients come together is there until it is reduced.
///
/// `whole` is the policy that leaves whole gradients, which goes on to add up losses. With `sums`, a block is added up
/// along the shard tree from the same units and divided by the same count, and so has its bits; else it is the mean
/// over the ranks.
std::unique_ptr<RankReduction> sharded_reduction(ProcessGroupPtr group, std::shared_ptr<Division> division,
                                                 std::unique_ptr<RankReduction> whole, ShardSums* sums);

}  // namespace lockstep::distributed
