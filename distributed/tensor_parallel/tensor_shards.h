#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/tensor_parallel/divided_size.h"

namespace lockstep::distributed {

/// Note [Tensor shards]
/// Layers that are divided over ranks are cut into T *logical* shards, of which each rank holds as many neighbours.
/// What a shard contributes (the partial products of a row-parallel layer, the gradient of what a column-parallel one
/// reads, the sums of a softmax over the vocabulary) is computed for each shard alone, by kernels that see the same
/// shapes wherever it lies, and added up along the shard tree with T leaves (Note [Shard tree]): first on the rank,
/// then between ranks. So with T fixed the bits are the same for every number of ranks that divides it, one included.
///
/// Without lockstep mode a rank is one shard, and the sum is an all-reduce. Shards of a size that T does not divide are
/// unequal, see Note [Divided sizes].
///
/// Note [Token shards]
/// With sequence parallelism (Korthikanti et al., "Reducing activation recomputation in large transformer models",
/// 2022) what lies between divided layers, [*, tokens, width], is divided along `tokens`: shard i has the i-th of so
/// many equal runs of them. Instead of a sum that all ranks get, each gets its tokens' (a reduce-scatter), and gathers
/// all tokens where a divided layer reads them; backward the other way round. What is computed a token at a time has
/// the same bits as without. The gradients of its parameters are added up by shards of tokens, along the tree: another
/// order than without, but one for every number of ranks.
class TensorShards {
 public:
  /// What is on its way between ranks: work that can be done meanwhile stands before wait().
  class Pending {
   public:
    explicit Pending(Tensor value) : value_(std::move(value)) {}
    Pending(WorkPtr work, std::function<Tensor()> result) : work_(std::move(work)), result_(std::move(result)) {}
    Tensor wait();

   private:
    Tensor value_;
    WorkPtr work_;
    std::function<Tensor()> result_;
  };

  /// `logical`: T, a power of two that the number of ranks divides; 0: as many as ranks, and an ordinary sum. Throws
  /// Error for another.
  TensorShards(ProcessGroupPtr group, std::int64_t logical);

  std::int64_t count() const { return count_; }     ///< shards of all ranks
  const ShardRange& mine() const { return mine_; }  ///< those of this rank
  bool is_lockstep() const { return lockstep_; }    ///< sums go along the tree
  ProcessGroup& group() const { return *group_; }   ///< the ranks
  const ProcessGroupPtr& group_pointer() const { return group_; }

  /// What the shards have of a size, see Note [Divided sizes].
  DividedSize divided(std::int64_t size) const { return {size, count_}; }
  /// What a rank has of it.
  SizeRun run_of(std::int64_t size, int rank) const;
  /// What each of this rank's shards has of its `own` part of a size. Throws Error, naming `what`, if that is less than
  /// one for each.
  DividedSize own_runs(std::int64_t own, const char* what) const;
  /// The size of which this rank has `own`: `whole`, or if that is 0 as many for every rank. Throws Error, naming
  /// `what`, if this rank's part of `whole` is another.
  std::int64_t size_of_whole(std::int64_t own, std::int64_t whole, const char* what) const;

  /// The sum over the shards of all ranks; `parts` are this rank's, in order, contiguous, and of no use afterwards. A
  /// collective; waits.
  Tensor sum(std::vector<Tensor> parts) const { return begin_sum(std::move(parts)).wait(); }
  Pending begin_sum(std::vector<Tensor> parts) const;  ///< the same, waiting later
  /// sum() of parts of which at most one, over all ranks, is not zero at any place; `own` has this rank's.
  Tensor sum_of_one(const Tensor& own) const;
  /// The largest value of all ranks at each place; in place.
  void max(const Tensor& values) const;

  /// Throws Error, naming `what`, on all ranks if they were given different integers; on CPUs, in the first calls
  /// alone.
  void check_alike(const Tensor& integers, const char* what) const;

  /// begin_sum() of parts [*, tokens, width], of which each rank gets its own tokens. Throws Error if they cannot be
  /// divided evenly into so many shards.
  Pending begin_sum_of_own_tokens(std::vector<Tensor> parts) const;
  /// [*, tokens, width] of what each rank has of it, `own` [*, tokens / ranks, width]. A collective.
  Pending begin_all_tokens(const Tensor& own) const;
  Tensor all_tokens(const Tensor& own) const { return begin_all_tokens(own).wait(); }
  /// This rank's tokens of what is whole; contiguous.
  Tensor own_tokens(const Tensor& whole) const;

 private:
  Tensor add_up(std::vector<Tensor> parts) const;
  Pending sum_over_ranks(Tensor own) const;

  ProcessGroupPtr group_;
  bool lockstep_;
  std::int64_t count_;
  ShardRange mine_;
  mutable std::atomic<int> checks_left_ = 4;  // of check_alike()
};

}  // namespace lockstep::distributed
