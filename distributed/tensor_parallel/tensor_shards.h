#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Note [Tensor shards]
/// Layers that are divided over ranks are cut into T *logical* shards, of which each rank holds as many neighbours.
/// What a shard contributes (the partial products of a row-parallel layer, the gradient of what a column-parallel one
/// reads, the sums of a softmax over the vocabulary) is computed for each shard alone, by kernels that see the same
/// shapes wherever it lies, and added up along the shard tree with T leaves (Note [Shard tree]): first on the rank,
/// then between ranks. So with T fixed the bits are the same for every number of ranks that divides it, one included.
///
/// Without lockstep mode a rank is one shard, and the sum is an all-reduce.
class TensorShards {
 public:
  /// `logical`: T, a power of two that the number of ranks divides; 0: as many as ranks, and an ordinary sum. Throws
  /// Error for another.
  TensorShards(ProcessGroupPtr group, std::int64_t logical);

  std::int64_t count() const { return count_; }     ///< shards of all ranks
  const ShardRange& mine() const { return mine_; }  ///< those of this rank
  bool is_lockstep() const { return lockstep_; }    ///< sums go along the tree
  ProcessGroup& group() const { return *group_; }   ///< the ranks

  /// The sum over the shards of all ranks; `parts` are this rank's, in order, contiguous, and of no use afterwards. A
  /// collective; waits.
  Tensor sum(std::vector<Tensor> parts) const;
  /// sum() of parts of which at most one, over all ranks, is not zero at any place; `own` has this rank's.
  Tensor sum_of_one(const Tensor& own) const;
  /// The largest value of all ranks at each place; in place.
  void max(const Tensor& values) const;

 private:
  Tensor sum_over_ranks(Tensor own) const;

  ProcessGroupPtr group_;
  bool lockstep_;
  std::int64_t count_;
  ShardRange mine_;
};

}  // namespace lockstep::distributed
