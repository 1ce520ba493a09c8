#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/nn/deferred_statistics.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// What a lockstep step adds up along the shard tree beside gradients, as one row of float64: the loss, its count, and
/// for every batch norm layer the number of values behind its statistics, and mean and unbiased variance of each
/// channel times that number.
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

  /// Takes the batch into the running statistics of the module's layers, as one update: the mean over all shards.
  void track(std::span<const double> totals) const;

 private:
  struct Layer {
    nn::BatchNorm* layer;
    std::size_t begin;
    std::size_t channels;
  };
  std::vector<Layer> layers_;
  std::size_t size_ = 2;
};

}  // namespace lockstep::distributed
