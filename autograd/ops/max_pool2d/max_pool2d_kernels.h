#pragma once

#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// All tensors contiguous. `positions` holds, for each output, which element of its window is the maximum, counted in
// row-major order over the window: uint8 if a window has at most 256 elements, else int32. Undefined: not wanted.
using MaxPool2dForward = void(const Pool2dGeometry& geometry, const Tensor& x, const Tensor& out,
                              const Tensor& positions);
MaxPool2dForward max_pool2d_forward_reference, max_pool2d_forward_cpu, max_pool2d_forward_cuda;
/// Sets every element of x_grad.
using MaxPool2dBackward = void(const Pool2dGeometry& geometry, const Tensor& grad, const Tensor& positions,
                               const Tensor& x_grad);
MaxPool2dBackward max_pool2d_backward_reference, max_pool2d_backward_cpu, max_pool2d_backward_cuda;

}  // namespace lockstep
