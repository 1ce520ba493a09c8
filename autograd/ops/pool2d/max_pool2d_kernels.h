#pragma once

#include <limits>

#include "lockstep/autograd/ops/pool2d/max_pool2d_relu.h"
#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// All tensors contiguous. `positions` holds, for each output, which element of its window is the maximum, counted in
// row-major order over the window: uint8 if a window has at most 256 elements, else int32. Undefined: not wanted. Fast
// kernels for windows of is_max_pool_2x2() add kMaxPoolNotPositive where the maximum is not above 0.

/// The maximum of a window without elements, as a dilated kernel may have it: below every value of T.
template <typename T>
inline constexpr T kNothing = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                                   : std::numeric_limits<T>::lowest();

/// Windows of 2 x 2 side by side.
inline bool is_max_pool_2x2(const Pool2dGeometry& g) {
  return g.kernel == Size2d(2) && g.stride == Size2d(2) && g.padding == Size2d(0) && g.dilation == Size2d(1) &&
         g.oh == g.h / 2 && g.ow == g.w / 2;
}

using MaxPool2dForward = void(const Pool2dGeometry& geometry, const Tensor& x, const Tensor& out,
                              const Tensor& positions);
MaxPool2dForward max_pool2d_forward_reference, max_pool2d_forward_cpu, max_pool2d_forward_cuda;
/// Sets every element of x_grad.
using MaxPool2dBackward = void(const Pool2dGeometry& geometry, const Tensor& grad, const Tensor& positions,
                               const Tensor& x_grad);
MaxPool2dBackward max_pool2d_backward_reference, max_pool2d_backward_cpu, max_pool2d_backward_cuda;
/// out = grad, or 0 where positions have kMaxPoolNotPositive. float32 on the CPU.
using MaxPool2dReluGrad = void(const Tensor& grad, const Tensor& positions, const Tensor& out);
MaxPool2dReluGrad max_pool2d_relu_grad_cpu, max_pool2d_relu_grad_cuda;

}  // namespace lockstep
