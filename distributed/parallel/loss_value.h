#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// What a loss function returns for its part of a batch: either the mean over the part's samples (a Tensor converts),
/// or a sum together with what the sum over the whole batch is to be divided by, such as a number of tokens. The step
/// weights the parts so that their gradients are those of the loss over the whole batch.
class LossValue {
 public:
  /// The mean over the part's samples: one element.
  LossValue(Tensor mean) : value_(std::move(mean)) {}
  /// A sum of losses, one element, and its share of the divisor.
  static LossValue sum(Tensor sum, double count) { return LossValue(std::move(sum), count); }

  const Tensor& value() const { return value_; }  ///< one element: the mean, or the sum
  /// Of a sum; none: the value is a mean over samples.
  const std::optional<double>& count() const { return count_; }

  /// The divisor's share, and the factor that makes a sum of the value, for a part of so many samples.
  double count_of(std::int64_t samples) const { return count_.value_or(static_cast<double>(samples)); }
  /// See count_of().
  double sum_factor(std::int64_t samples) const { return count_ ? 1.0 : static_cast<double>(samples); }

 private:
  LossValue(Tensor sum, double count) : value_(std::move(sum)), count_(count) {}

  Tensor value_;
  std::optional<double> count_;
};

/// The loss of a part of a batch, computed by `module`: the model that is trained, or its replica on a device. A step
/// calls it for each part that is computed here; with several devices, on several threads at once.
using LossFunction = std::function<LossValue(nn::Module& module, const data::Batch& part)>;

/// Throws Error unless the value is one element and a count is finite and not negative.
void check_loss(const LossValue& loss);

}  // namespace lockstep::distributed
