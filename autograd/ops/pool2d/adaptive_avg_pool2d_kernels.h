#pragma once

#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Forward: `to` = means of `from`'s windows. Backward: `to`, the gradient of x, from the output's gradient; sets every
/// element. All tensors contiguous; of the geometry, the planes and the four sides count.
using AdaptiveAvgPool2dKernel = void(const Pool2dGeometry& geometry, const Tensor& from, const Tensor& to);
AdaptiveAvgPool2dKernel adaptive_avg_pool2d_forward_cpu, adaptive_avg_pool2d_backward_cpu,
    adaptive_avg_pool2d_forward_cuda, adaptive_avg_pool2d_backward_cuda;

}  // namespace lockstep
