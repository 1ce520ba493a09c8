#pragma once

#include <span>

#include "lockstep/autograd/node.h"

namespace lockstep {

/// Finds where the first NaN comes from. While one lives, whatever goes into an operation that this thread records, the
/// roots of a backward() and the results of each backward function are looked at, and the first NaN throws Error with
/// the name of the operation or backward function that made it. Slow: every value is read, and on a device waited for.
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
void check_input(const Tensor& input);
void check_gradients(const Node& node, std::span<const Tensor> results);
}  // namespace detail

}  // namespace lockstep
