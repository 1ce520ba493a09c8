#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/nll_loss/class_targets.h"
#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Elements whose losses are added up by themselves on the CPU, before these sums are.
inline constexpr std::int64_t kCrossEntropyBlock = 4096;

struct CrossEntropyProblem {
  ClassRows rows;
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  bool planes = false;  ///< logits and their gradient are [batch, classes, inner], on the CPU alone
};

/// The most classes of `planes`.
inline constexpr std::int64_t kMostPlanes = 256;

/// All tensors contiguous; logits are [rows, classes], whatever rows.inner says, unless `planes` is set. `weight` may
/// be undefined. Writes `loss`: one value a row, or one; `normalizers`: [rows, 2], for each row the largest logit and
/// the log of the sum of exp(logit - largest), float64 for float64 logits, else float32; `total_weight`: one float64,
/// the sum of the weights of the targets that count. For a target out of range throws Error, or does what Note [Targets
/// on a device] says.
using CrossEntropyKernel = void(const Tensor& logits, const Tensor& target, const Tensor& weight, const Tensor& loss,
                                const Tensor& normalizers, const Tensor& total_weight,
                                const CrossEntropyProblem& problem);
CrossEntropyKernel cross_entropy_cpu, cross_entropy_cuda;
/// Writes every element of `grad_input`.
using CrossEntropyBackwardKernel = void(const Tensor& grad, const Tensor& logits, const Tensor& target,
                                        const Tensor& weight, const Tensor& normalizers, const Tensor& total_weight,
                                        const Tensor& grad_input, const CrossEntropyProblem& problem);
CrossEntropyBackwardKernel cross_entropy_backward_cpu, cross_entropy_backward_cuda;

/// The same for planes, with the same bits.
CrossEntropyKernel cross_entropy_of_planes;
CrossEntropyBackwardKernel cross_entropy_of_planes_backward;

}  // namespace lockstep
