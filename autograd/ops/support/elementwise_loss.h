#pragma once

// What losses that compare two tensors of one shape have in common.

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Throws Error naming `op` unless input and target are floating point with the same shape, dtype and device.
void check_same_kind(const Tensor& input, const Tensor& target, const char* op);

/// An uninitialised result: one value an element, or a scalar.
Tensor empty_loss(const Tensor& input, Reduction reduction);

/// What each element's gradient is multiplied by: 1 / numel for the mean, else 1.
inline double reduction_scale(const Tensor& input, Reduction reduction) {
  return reduction == Reduction::mean ? 1.0 / static_cast<double>(input.numel()) : 1.0;
}

}  // namespace lockstep
