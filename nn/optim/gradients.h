#pragma once

// What clipping and loss scaling ask of a device: passes over many gradients in their memory. All gradients of a call
// are on one device, floating-point, and not empty.

#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/optim/clip_grad.h"

namespace lockstep::optim::detail {

using Gradients = std::vector<Tensor>;

/// Into `norm`, float64 [2] on the same device: the Euclidean norm of all of them, and what clip_grad_norm_()
/// multiplies them by, max_norm / (norm + 1e-6). Summed in double over blocks that depend on the shapes alone.
using GradNormKernel = void(const Gradients& gradients, double max_norm, const Tensor& norm);
GradNormKernel grad_norm_cpu, grad_norm_cuda;
/// Multiplies by norm[1] unless that is 1 or more.
using GradScaleKernel = void(const Gradients& gradients, const Tensor& norm);
GradScaleKernel grad_scale_cpu, grad_scale_cuda;
/// Clamps to [-limit, limit].
using GradClampKernel = void(const Gradients& gradients, double limit);
GradClampKernel grad_clamp_cpu, grad_clamp_cuda;
/// Multiplies by `factor`; writes 1 into `overflowed`, int32 [1] on the same device, if a result is not finite.
using GradUnscaleKernel = void(const Gradients& gradients, double factor, const Tensor& overflowed);
GradUnscaleKernel grad_unscale_cpu, grad_unscale_cuda;

/// What a GradScaler keeps in a device's memory, float64 [kScalerWords]; Note [Scaling on the device].
enum ScalerWord {
  kScale,       ///< of the loss
  kInverse,     ///< 1 / scale
  kOverflowed,  ///< 1 if a gradient of this step is not finite, else 0
  kSkipped,     ///< steps left out before this one
  kGoodSteps,   ///< since the scale last changed
  kScalerWords
};
/// grad_unscale() with the factor and the answer in `words`: writes kInverse and kOverflowed.
using GradUnscaleByKernel = void(const Gradients& gradients, const Tensor& words);
GradUnscaleByKernel grad_unscale_by_cuda;
/// The least that a scale shrinks to. Its inverse is finite in float32, and gradients of any size are at this scale.
inline constexpr double kSmallestScale = 0x1p-126;
/// Ends a step: counts it, or that it was left out, and changes the scale as GradScaler::update() does.
using ScalerUpdateKernel = void(const Tensor& words, double growth, double backoff, std::int64_t interval);
ScalerUpdateKernel scaler_update_cuda;

/// Of each parameter the sum of its gradient's squares, 0 without one. Added up in their order they are the square of
/// the norm that clip_grad_norm_() takes on the CPU, to the bit, wherever each was computed.
std::vector<double> gradient_squares(const std::vector<Tensor>& parameters);
/// What grad_norm_cpu() adds up for a block of cpu::kElementBlock elements of a gradient (or fewer, at its end), on the
/// CPU; for several blocks, the sum of theirs.
double sum_of_squares(const Tensor& grad);

/// The end of clip_grad_norm_(): gradients times norm[1], as GradNormKernel gives it.
GradNorm scale_to_norm(const std::vector<Gradients>& by_device, const Tensor& norm, bool error_if_nonfinite);

/// Drops the gradients, or sets them to zero in their memory; those that they have elsewhere (Note [Gradients in
/// parts]) too.
void zero_gradients(const std::vector<Tensor>& parameters, bool set_to_none);

/// The gradients of the parameters that have one with elements, device by device. Each has memory of its own for all
/// its elements: a gradient that does not is replaced by a copy.
std::vector<Gradients> gradients_by_device(const std::vector<Tensor>& parameters);

}  // namespace lockstep::optim::detail
