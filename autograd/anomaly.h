#pragma once

#include <atomic>
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
  AnomalyMode();
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

  /// Whether one lives on this thread. Costs a load while none lives anywhere.
  static bool enabled() { return alive_.load(std::memory_order_relaxed) != 0 && enabled_here(); }

 private:
  static bool enabled_here();

  static constinit std::atomic<int> alive_;
};

namespace detail {
void check_input(const Tensor& input);
void check_gradients(const Node& node, std::span<const Tensor> results);
}  // namespace detail

}  // namespace lockstep
