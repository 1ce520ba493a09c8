#pragma once

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of bce_with_logits().
struct BceWithLogitsOptions {
  Reduction reduction = Reduction::mean;  ///< mean or sum over the elements, or all of them
  Tensor weight = {};                     ///< a factor for each element; broadcasts to the input; takes no gradient
  Tensor pos_weight = {};  ///< a factor for the positive part, usually [C]; broadcasts to the input; takes no gradient
};

/// Binary cross-entropy of sigmoid(input) against targets in [0, 1], stable for any input:
///   weight * ((1 - t) * x + (1 + (pos_weight - 1) * t) * log(1 + exp(-x)))
/// Semantics of torch.nn.functional.binary_cross_entropy_with_logits. Differentiable in input and target. Throws Error
/// unless both have the same shape, floating-point dtype and device.
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const BceWithLogitsOptions& options = {});

}  // namespace lockstep
