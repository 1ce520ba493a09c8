#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/nll_loss/class_targets.h"
#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

struct NllLossProblem {
  ClassRows rows;
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;
};

/// All tensors contiguous. `weight` may be undefined. `loss`: one value a row, or one. `total_weight`: one float64, the
/// sum of the weights of the targets that count. For a target out of range throws Error, or does what Note [Targets on
/// a device] says.
using NllLossKernel = void(const Tensor& log_probs, const Tensor& target, const Tensor& weight, const Tensor& loss,
                           const Tensor& total_weight, const NllLossProblem& problem);
NllLossKernel nll_loss_cpu, nll_loss_cuda;
/// Writes every element of `grad_input`.
using NllLossBackwardKernel = void(const Tensor& grad, const Tensor& target, const Tensor& weight,
                                   const Tensor& total_weight, const Tensor& grad_input, const NllLossProblem& problem);
NllLossBackwardKernel nll_loss_backward_cpu, nll_loss_backward_cuda;

}  // namespace lockstep
