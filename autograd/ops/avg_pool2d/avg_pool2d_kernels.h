#pragma once

#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// What a window's sum is divided by.
struct AvgPool2dDivisor {
  bool count_include_pad = true;
  std::int64_t fixed = 0;  ///< if not 0
};

// All tensors contiguous.
using AvgPool2dKernel = void (*)(const Pool2dGeometry& geometry, const AvgPool2dDivisor& divisor, const Tensor& from,
                                 const Tensor& to);

/// out = means of x's windows.
void avg_pool2d_forward_cpu(const Pool2dGeometry&, const AvgPool2dDivisor&, const Tensor& x, const Tensor& out);
/// Sets every element of x_grad.
void avg_pool2d_backward_cpu(const Pool2dGeometry&, const AvgPool2dDivisor&, const Tensor& grad, const Tensor& x_grad);
void avg_pool2d_forward_cuda(const Pool2dGeometry&, const AvgPool2dDivisor&, const Tensor& x, const Tensor& out);
void avg_pool2d_backward_cuda(const Pool2dGeometry&, const AvgPool2dDivisor&, const Tensor& grad, const Tensor& x_grad);

}  // namespace lockstep
