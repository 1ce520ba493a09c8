#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/loss_value.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Note [Accumulation]
/// Loss and gradients of one module's part of a batch, computed in slices, one after the other: activations of one
/// slice are alive at a time, and the gradients of all slices add up in the leaves. Each slice is weighted by its share
/// of the whole batch, however unevenly it is cut, so that the sum is the gradient of the loss over the batch.
///
/// The last slice's backward pass is apart from the rest (finish()): it is the one that communicates, and the divisor
/// of losses that are sums with a count is only known once every rank has computed all its forwards. Earlier slices
/// then are divided by the number of samples at first and corrected before the last pass.
class SlicedLoss {
 public:
  using LossFunction = std::function<LossValue(const data::Batch& slice)>;

  struct Options {
    std::int64_t slices = 1;
    /// The gradients are multiplied by this.
    double scale = 1.0;
    /// Call the loss function for slices without samples too, for layers that communicate in forward().
    bool empty_slices = false;
    /// Who is to blame in errors.
    const char* step = "step";
  };

  /// `part` is what this module computes of a batch of part.global_size samples; it is moved to the module's device.
  /// The module must outlive this object.
  SlicedLoss(nn::Module& module, data::Batch part, Options options);

  /// Forward of every slice, and backward of all but the last.
  void begin(const LossFunction& loss);
  /// Sum of the losses, one float64 element on the module's device (undefined without samples), and what it is to be
  /// divided by. Valid after begin(); sum() waits for the device.
  const Tensor& device_sum() const { return sum_; }
  double sum() const { return sum_.defined() ? sum_.item<double>() : 0.0; }
  double count() const { return count_; }
  /// The loss function gave counts of its own: the divisor is the sum of count() over all parts of the batch, not the
  /// number of samples.
  bool counted() const { return counted_; }
  /// True if there is a last slice, and so a pass for finish().
  bool pending() const { return last_.defined(); }
  /// Backward of the last slice. The gradients then are scale / divisor times those of the sum.
  void finish(double divisor);

 private:
  void add_to_sum(const Tensor& value, double factor);
  void backward(const Tensor& value, double factor, double divisor);

  nn::Module& module_;
  data::Batch part_;
  Options options_;
  Tensor sum_;
  double count_ = 0.0;
  bool counted_ = false;
  std::int64_t passes_ = 0;
  Tensor last_;
  double last_factor_ = 0.0;
};

/// Throws Error, naming `who`, unless accumulate is at least 1, and 1 in lockstep mode.
void check_accumulate(std::int64_t accumulate, std::int64_t logical_shards, const char* who);

}  // namespace lockstep::distributed
