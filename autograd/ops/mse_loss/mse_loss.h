#pragma once

#include "lockstep/autograd/ops/support/reduction.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of mse_loss().
struct MseLossOptions {
  Reduction reduction = Reduction::mean;  ///< mean or sum over the elements, or all of them
};

/// (input - target)^2, kept by element, averaged over all elements or summed. Differentiable in both arguments.
/// Unlike PyTorch, which warns and broadcasts, shapes must be equal: a target of [N] against [N, 1] is nearly always a
/// mistake. Throws Error for differing shapes, dtypes or devices, and for dtypes that are not floating point.
Tensor mse_loss(const Tensor& input, const Tensor& target, MseLossOptions options = {});

}  // namespace lockstep
