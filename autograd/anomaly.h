#pragma once

#include <span>

#include "lockstep/autograd/node.h"

namespace lockstep {

/// Finds where the first NaN comes from. While one lives, each operation that this thread records, and each backward
/// function that it runs, is looked at, and the first whose result has a NaN throws Error with its name. Slow: every
/// value is read, and on a device waited for.
///
///   const AnomalyMode anomaly;
///   loss_of(model(batch.x), batch.y).backward();
class AnomalyMode {
 public:
  AnomalyMode() : outer_(enabled_) { enabled_ = true; }
  ~AnomalyMode() { enabled_ = outer_; }
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

  static bool enabled() { return enabled_; }

 private:
  static thread_local constinit bool enabled_;
  bool outer_;
};

namespace detail {
void check_results(const Node& node, std::span<const Tensor* const> outputs);
void check_gradients(const Node& node, std::span<const Tensor> results);
}  // namespace detail

}  // namespace lockstep
