#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/options.h"

namespace lockstep::distributed {

struct Division;

/// What computes one worker's shares of a batch (Note [Shares]), and knows what their losses add up to.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// `part` is what this worker computes of a batch of part.global_size samples. `step` enters the random keys of
  /// logical shards. Gradients of slices are multiplied by `scale`. Layers that communicate in forward() need
  /// `empty_slices`: the loss function is called for slices without samples too. Throws what the loss function throws.
  virtual void begin(const data::Batch& part, std::uint64_t step, const LossFunction& loss, double scale = 1.0,
                     bool empty_slices = false) = 0;
  /// True if there is something for finish() to do.
  virtual bool pending() const = 0;
  /// What can only be done when the divisor of all losses is known. The gradients of slices then are scale / divisor
  /// times those of the sum; those of logical shards are divided when all are added up, and `divisor` is 1.
  virtual void finish(double divisor) = 0;
  /// `final` is called in begin() for each list of ModelPart::trained() whose gradients are final, while others are
  /// still computed; without samples too, so that all workers make the same calls.
  void when_final(std::function<void(std::size_t list)> final) { when_final_ = std::move(final); }
  /// Gradients are divided over the workers, and perhaps values (Note [Divided parameters]); before the first step.
  virtual void divided_by(std::shared_ptr<Division>) {}
  /// When the gradients of all workers have been added up.
  virtual void after_reduction() {}
  /// The first loss is looked at for tensors that are trained by nobody; see nn::detail::warn_of_unregistered().
  virtual void look_for_unregistered() {}

  /// Sum of the losses of slices, one float64 element on the module's device; undefined without samples.
  const Tensor& device_sum() const { return sum_; }
  /// The same, waiting for the device.
  double sum() const { return sum_.defined() ? sum_.item<double>() : 0.0; }
  /// What the sum is to be divided by.
  double count() const { return count_; }
  /// The loss function gave counts of its own: the divisor is the sum of count() over all parts of the batch, not the
  /// number of samples.
  bool counted() const { return counted_; }

 protected:
  Tensor sum_;
  double count_ = 0.0;
  bool counted_ = false;
  std::function<void(std::size_t list)> when_final_;
};

/// Throws Error for a sum of all losses' counts that nothing can be divided by.
void check_divisor(double count);

}  // namespace lockstep::distributed
