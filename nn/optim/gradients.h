#pragma once

// What clipping and loss scaling ask of a device: passes over many gradients in their memory. All gradients of a call
// are on one device, floating-point, and not empty.

#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::optim::detail {

using Gradients = std::vector<Tensor>;

/// Into `norm`, float64 [2] on the same device: the Euclidean norm of all of them, and what clip_grad_norm_()
/// multiplies them by, max_norm / (norm + 1e-6). Summed in double over blocks that depend on the shapes alone.
using GradNormKernel = void (*)(const Gradients& gradients, double max_norm, const Tensor& norm);
/// Multiplies by norm[1] unless that is 1 or more.
using GradScaleKernel = void (*)(const Gradients& gradients, const Tensor& norm);
/// Clamps to [-limit, limit].
using GradClampKernel = void (*)(const Gradients& gradients, double limit);
/// Multiplies by `factor`; writes 1 into `overflowed`, int32 [1] on the same device, if a result is not finite.
using GradUnscaleKernel = void (*)(const Gradients& gradients, double factor, const Tensor& overflowed);

void grad_norm_cpu(const Gradients& gradients, double max_norm, const Tensor& norm);
void grad_scale_cpu(const Gradients& gradients, const Tensor& norm);
void grad_clamp_cpu(const Gradients& gradients, double limit);
void grad_unscale_cpu(const Gradients& gradients, double factor, const Tensor& overflowed);

void grad_norm_cuda(const Gradients& gradients, double max_norm, const Tensor& norm);
void grad_scale_cuda(const Gradients& gradients, const Tensor& norm);
void grad_clamp_cuda(const Gradients& gradients, double limit);
void grad_unscale_cuda(const Gradients& gradients, double factor, const Tensor& overflowed);

/// The gradients of the parameters that have one with elements, device by device.
std::vector<Gradients> gradients_by_device(const std::vector<Tensor>& parameters);

}  // namespace lockstep::optim::detail
