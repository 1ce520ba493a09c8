#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/partition.h"
#include "lockstep/distributed/collectives/shard_tree.h"

namespace lockstep::distributed {

/// Note [Shares]
/// A step cuts a global batch into parts, one for each worker (a device or a rank), and each part into shares, which
/// are computed one after the other: activations of one share are alive at a time. A share is the whole part, one of k
/// slices of it (accumulation), or one of the V logical shards of lockstep mode. Parts and shares are contiguous, and
/// their sizes differ by one at most, larger ones first.
///
/// Each share's loss is weighted by its share of the whole batch, however unevenly that is cut, so that the sum of the
/// gradients is the gradient of the loss over the batch. The backward pass of a worker's last share is apart from the
/// rest: it is the one that communicates, and the divisor of losses that are sums with a count is only known once every
/// worker has computed all its forwards.
///
/// What is here is pure: numbers of samples in, ranges of samples out.
struct Share {
  std::int64_t index = 0;  ///< of the slice in its part, or of the logical shard in the batch
  data::Range samples;     ///< of the worker's part
};

/// The slices of a part that have samples; with `empty_too`, `slices` of them.
std::vector<Share> slices_of_part(std::int64_t samples, std::int64_t slices, bool empty_too);

/// A worker's logical shards that have samples, of `shards` that a batch of `size` samples is cut into. Those without,
/// which a short batch leaves, are at the end.
std::vector<Share> shards_of_part(std::int64_t size, std::int64_t shards, const ShardRange& mine);

/// The samples of a global batch that one of `workers` computes; with `shards` (0: none), those of its logical shards.
data::Range samples_of_worker(std::int64_t size, std::int64_t shards, int workers, int worker);

/// Rows of a batch, as views.
data::Batch rows_of(const data::Batch& batch, const data::Range& range);

}  // namespace lockstep::distributed
