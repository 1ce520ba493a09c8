#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// The family; each has a functor in pointwise_loss_functors.h. `huber` and `smooth_l1` have a parameter.
enum class PointwiseLoss : std::uint8_t { mse, l1, smooth_l1, huber, bce };

/// All tensors contiguous, of one dtype. `loss`: one value an element, or one.
using PointwiseLossKernel = void(PointwiseLoss kind, double parameter, const Tensor& input, const Tensor& target,
                                 const Tensor& loss, Reduction reduction);
PointwiseLossKernel pointwise_loss_cpu, pointwise_loss_cuda;
/// grad_input and grad_target may be undefined.
using PointwiseLossBackwardKernel = void(PointwiseLoss kind, double parameter, const Tensor& grad, const Tensor& input,
                                         const Tensor& target, const Tensor& grad_input, const Tensor& grad_target,
                                         Reduction reduction);
PointwiseLossBackwardKernel pointwise_loss_backward_cpu, pointwise_loss_backward_cuda;

}  // namespace lockstep
