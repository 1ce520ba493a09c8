#pragma once

#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// What a window's sum is divided by.
struct AvgPool2dDivisor {
  bool count_include_pad = true;
  std::int64_t fixed = 0;  ///< if not 0
};

/// Forward: `to` = means of `from`'s windows. Backward: `to`, the gradient of x, from the output's gradient; sets every
/// element. All tensors contiguous.
using AvgPool2dKernel = void(const Pool2dGeometry& geometry, const AvgPool2dDivisor& divisor, const Tensor& from,
                             const Tensor& to);
AvgPool2dKernel avg_pool2d_forward_cpu, avg_pool2d_backward_cpu, avg_pool2d_forward_cuda, avg_pool2d_backward_cuda;

}  // namespace lockstep
