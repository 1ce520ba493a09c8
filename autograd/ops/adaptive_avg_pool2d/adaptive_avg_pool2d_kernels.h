#pragma once

#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// All tensors contiguous; of the geometry, the planes and the four sides count.
using AdaptiveAvgPool2dKernel = void (*)(const Pool2dGeometry& geometry, const Tensor& from, const Tensor& to);

/// out = means of x's windows.
void adaptive_avg_pool2d_forward_cpu(const Pool2dGeometry&, const Tensor& x, const Tensor& out);
/// Sets every element of x_grad.
void adaptive_avg_pool2d_backward_cpu(const Pool2dGeometry&, const Tensor& grad, const Tensor& x_grad);
void adaptive_avg_pool2d_forward_cuda(const Pool2dGeometry&, const Tensor& x, const Tensor& out);
void adaptive_avg_pool2d_backward_cuda(const Pool2dGeometry&, const Tensor& grad, const Tensor& x_grad);

}  // namespace lockstep
