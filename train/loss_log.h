#pragma once

// For .cpp files only.

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/train/sink.h"

namespace lockstep::training {

/// Losses on their way from a device to the sinks: they are read together, so that steps need not wait for each other.
class LossLog {
 public:
  /// Gets each step, with its loss, in order.
  using Report = std::function<void(const StepReport& report)>;
  explicit LossLog(Report report) : report_(std::move(report)) {}

  /// `loss`: one float64 element on any device; it is copied there. `report` says the rest.
  void add(StepReport report, const Tensor& loss);
  /// Hands on what there is; waits for the device.
  void flush();

 private:
  Report report_;
  std::vector<StepReport> waiting_;
  Tensor losses_;
};

}  // namespace lockstep::training
