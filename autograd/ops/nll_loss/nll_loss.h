#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of nll_loss().
struct NllLossOptions {
  Reduction reduction = Reduction::mean;  ///< mean or sum over the samples, or each of them
  std::int64_t ignore_index = -100;       ///< targets of this value count for nothing
  Tensor weight = {};                     ///< [C], a factor for each class, of the input's dtype; takes no gradient
};

/// Negative log likelihood: -weight[t] * log_probs[t] for each target t. Semantics of torch.nn.functional.nll_loss.
///
/// `log_probs`: [C], [N, C] or [N, C, d1, ...], floating point. `target`: int64 class indices of shape [], [N] or
/// [N, d1, ...]. Returns target's shape for Reduction::none (0 where ignored), else a scalar; the mean divides by the
/// weights of the targets that count, so it is NaN if there are none. Throws Error for shapes, dtypes or devices that
/// do not fit, and for a target outside [0, C) that is not ignore_index; on a CUDA device such a target makes the loss
/// NaN instead.
Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const NllLossOptions& options = {});

}  // namespace lockstep
