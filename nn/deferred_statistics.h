#pragma once

#include <vector>

#include "lockstep/autograd/ops/batch_norm/batch_norm.h"

namespace lockstep::nn {

class BatchNorm;

/// While one lives, batch norm layers that train on this thread normalise by their batch as ever, but leave their
/// running statistics alone and record the batch's here. For steps that compute a batch in parts and combine what the
/// parts have seen. Nests; the innermost records.
class DeferredStatistics {
 public:
  struct Entry {
    BatchNorm* layer;
    ChannelStatistics statistics;  ///< mean and biased variance
  };

  DeferredStatistics();
  ~DeferredStatistics();
  DeferredStatistics(const DeferredStatistics&) = delete;
  DeferredStatistics& operator=(const DeferredStatistics&) = delete;

  /// In the order of the layers' calls.
  const std::vector<Entry>& entries() const { return entries_; }

  /// The one that records on this thread; null: none.
  static DeferredStatistics* current();
  void add(BatchNorm* layer, const ChannelStatistics& statistics) { entries_.push_back({layer, statistics}); }

 private:
  DeferredStatistics* previous_;
  std::vector<Entry> entries_;
};

/// While one lives, batch norm layers that train on this thread normalise by their batch as ever, and neither change
/// their running statistics nor record the batch's anywhere. For a pass that computes once more what has been counted
/// already. Nests.
class StatisticsKept {
 public:
  StatisticsKept();
  ~StatisticsKept();
  StatisticsKept(const StatisticsKept&) = delete;
  StatisticsKept& operator=(const StatisticsKept&) = delete;

  /// Whether one lives on this thread.
  static bool active();

 private:
  bool before_;
};

}  // namespace lockstep::nn
