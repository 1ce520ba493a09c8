#pragma once

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of mse_loss().
struct MseLossOptions {
  Reduction reduction = Reduction::mean;  ///< mean or sum over the elements, or all of them
};

/// (input - target)^2, kept by element, averaged over all elements or summed. Differentiable in both arguments.
/// Shapes broadcast, as in PyTorch, which warns of it: a target of [N] against an input of [N, 1] compares all pairs.
/// Throws Error for shapes that do not broadcast, differing dtypes or devices, and dtypes that are not floating point.
Tensor mse_loss(const Tensor& input, const Tensor& target, MseLossOptions options = {});

}  // namespace lockstep
