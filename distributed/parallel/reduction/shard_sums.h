#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/parallel/reduction/step_totals.h"
#include "lockstep/nn/deferred_statistics.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Note [Shard sums]
/// What the logical shards of one worker leave, added up along the shard tree as far as its shards reach: gradients and
/// totals. The gradients of finished shards are added as a binary counter does, which keeps log2 of their number; those
/// of the last shard stay apart, a parameter at a time, so that each can travel while the rest is computed. Shards
/// without samples, which a short batch leaves at the end, count as zeros.
///
/// Not thread-safe; distinct objects, of distinct modules, may be used side by side.
class ShardSums {
 public:
  /// What is known of a sum: addends and the nodes that they are, from left to right. They fill the worker's range.
  struct Parts {
    std::vector<Tensor> tensors;
    std::vector<TreeNode> nodes;
  };

  /// `mine` are the shards here, of `shards` in all. Takes note of the parameters that require gradients.
  ShardSums(nn::Module& module, std::int64_t shards, ShardRange mine);
  /// The same for some of its parameters, those that one backward gives their gradients in a list of their own.
  ShardSums(nn::Module& module, const std::vector<std::vector<nn::NamedTensor>>& groups, std::int64_t shards,
            ShardRange mine);

  std::int64_t shards() const { return shards_; }
  const ShardRange& mine() const { return mine_; }
  const std::vector<nn::NamedTensor>& parameters() const { return parameters_; }
  const StepTotals& layout() const { return layout_; }

  /// Begins a step: drops what the last one left, and the parameters' gradients.
  void begin();
  /// What a shard's forward gave.
  void add_totals(std::int64_t shard, double loss_sum, double count, const nn::DeferredStatistics& statistics);
  /// The same, a row that layout() made.
  void add_totals(std::int64_t shard, std::vector<double> row);
  /// Takes the gradients that a shard's backward has left with the parameters of a group.
  void keep(std::int64_t shard, std::size_t group = 0);
  /// All forwards are done. `last` is the shard whose backward is to come; -1: none, all that have samples are kept.
  /// Throws Error for a buffer that forward() changed without batch norm's help, since its value would depend on the
  /// number of workers.
  void close(std::int64_t last);
  /// After close(), before totals(): of what names, dtypes and sizes the rows of this worker's shards are, of which
  /// `part` has the samples. See Note [Rows of one kind].
  void note_rows(const data::Batch& part);
  /// Throws Error if the totals of all shards say that they have rows of different kinds.
  void check_rows(std::span<const double> totals) const;
  /// Takes the last shard's gradient of one parameter, or of all.
  void take(std::size_t parameter);
  void take_all();
  /// Drops sums and gradients of a step that is finished or was broken off.
  void clear();

  /// After take(): this worker's parts of one parameter's gradient.
  Parts parts(std::size_t parameter);
  /// After close(): a row of totals for each unit of the range (tree_units).
  const std::vector<std::vector<double>>& totals() const { return totals_; }
  /// By parameter: has a shard here given it a gradient in this step?
  const std::vector<bool>& used() const { return used_; }

 private:
  using Gradients = std::vector<Tensor>;  // by parameter, or by place in its group

  /// Parameters that are kept together: the first of them, how many, and the first shard that is not kept yet.
  struct Group {
    std::size_t first = 0;
    std::size_t count = 0;
    TreeStack<Gradients> sums = {};
    std::int64_t next = 0;
  };

  const Tensor& zeros_of(std::size_t parameter);
  std::vector<std::uint32_t> versions() const;
  void check_unchanged() const;

  std::int64_t shards_;
  ShardRange mine_;
  StepTotals layout_;
  std::vector<nn::NamedTensor> parameters_;
  std::vector<nn::NamedTensor> buffers_, module_parameters_;
  std::vector<std::uint32_t> versions_;  // of these, when the step began

  std::vector<Group> groups_;
  TreeStack<std::vector<double>> total_sums_;
  std::int64_t next_total_ = 0;  // the first shard without totals
  std::vector<std::vector<double>> totals_;
  std::string rows_;  // of this step's shards, for people
  std::int64_t last_ = -1;
  Gradients last_gradients_;
  Gradients zeros_;
  std::vector<bool> used_;
};

/// A module's parameters that require gradients.
std::vector<nn::NamedTensor> trained_parameters(const nn::Module& module);

/// Adds a row of totals to another.
void add_rows(std::vector<double>& left, const std::vector<double>& right);

/// The parts that lie inside one unit of the tree.
ShardSums::Parts parts_inside(const ShardSums::Parts& parts, const TreeNode& unit);

/// target = the sum of `parts` along the tree, divided by `divisor`; `target` may be the first part. Runs in parallel.
void sum_parts(const Tensor& target, const ShardSums::Parts& parts, double divisor = 1.0);

}  // namespace lockstep::distributed
