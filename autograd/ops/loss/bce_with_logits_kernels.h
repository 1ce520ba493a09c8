#pragma once

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// All tensors contiguous, of one dtype and shape; weight and pos_weight may be undefined. `loss`: one value an
/// element, or one.
using BceWithLogitsKernel = void(const Tensor& input, const Tensor& target, const Tensor& weight,
                                 const Tensor& pos_weight, const Tensor& loss, Reduction reduction);
BceWithLogitsKernel bce_with_logits_cpu, bce_with_logits_cuda;
/// grad_input and grad_target may be undefined.
using BceWithLogitsBackwardKernel = void(const Tensor& grad, const Tensor& input, const Tensor& target,
                                         const Tensor& weight, const Tensor& pos_weight, const Tensor& grad_input,
                                         const Tensor& grad_target, Reduction reduction);
BceWithLogitsBackwardKernel bce_with_logits_backward_cpu, bce_with_logits_backward_cuda;

}  // namespace lockstep
