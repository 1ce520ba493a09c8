#pragma once

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// All tensors contiguous, of one dtype. `loss`: one value an element, or one.
using MseLossKernel = void(const Tensor& input, const Tensor& target, const Tensor& loss, Reduction reduction);
MseLossKernel mse_loss_cpu, mse_loss_cuda;
/// grad_input and grad_target may be undefined.
using MseLossBackwardKernel = void(const Tensor& grad, const Tensor& input, const Tensor& target,
                                   const Tensor& grad_input, const Tensor& grad_target, Reduction reduction);
MseLossBackwardKernel mse_loss_backward_cpu, mse_loss_backward_cuda;

}  // namespace lockstep
