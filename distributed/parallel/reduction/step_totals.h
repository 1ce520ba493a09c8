#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/nn/deferred_statistics.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// What a lockstep step adds up along the shard tree beside gradients, as one row of float64: the loss, its count, for
/// every batch norm layer the number of values behind its statistics, and mean and unbiased variance of each channel
/// times that number, and at the end what tells whether all shards have rows of one kind.
///
/// Note [Rows of one kind]
/// Shards of other names, dtypes or sizes of a row than the rest, such as those that are padded to their own longest
/// sample, would be padded to another length where one worker joins them. Each rank turns what its shards have into a
/// number k, and their count, the sum of k and that of its square travel in the row. They are whole numbers that double
/// adds without rounding, and n * sum(k^2) equals sum(k)^2 only if all n are equal.
class StepTotals {
 public:
  /// Finds the layers below `module`; modules of the same structure give the same layout.
  explicit StepTotals(nn::Module& module);

  std::size_t size() const { return size_; }

  /// A row of zeros with a shard's sums added. Throws Error for a layer that is not below the module.
  std::vector<double> row(double loss_sum, double count, const nn::DeferredStatistics& statistics) const;

  /// The mean loss, as one float64 element. Throws Error if the losses count nothing.
  static Tensor mean_loss(std::span<const double> totals);
  static double count(std::span<const double> totals) { return totals[1]; }
  /// Where the count stands in a row.
  static constexpr std::int64_t kCountColumn = 1;

  /// Adds `shards` shards to a row, of `all` that a batch may have, whose rows are of a kind that `hash` names.
  void add_kind(std::vector<double>& row, std::int64_t shards, std::uint64_t hash, std::int64_t all) const;
  /// Whether those of all rows are of one kind.
  bool one_kind(std::span<const double> totals) const;

  /// Takes the batch into the running statistics of the module's layers, as one update: the mean over all shards.
  void track(std::span<const double> totals) const;

 private:
  struct Layer {
    nn::BatchNorm* layer;
    std::size_t begin;
    std::size_t channels;
  };
  static constexpr std::size_t kKindColumns = 3;  // the last ones: Note [Rows of one kind]
  std::vector<Layer> layers_;
  std::size_t size_ = 2;
};

}  // namespace lockstep::distributed
