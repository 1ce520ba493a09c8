#pragma once

// Convolutions on CUDA devices in the order of the CPU's: see Note [Portable arithmetic] in core/cuda/math_mode.h. Each
// throws Error for a geometry or dtype for which there is none.

#include "lockstep/autograd/ops/conv2d/conv2d_pool_kernels.h"

namespace lockstep::conv2d_portable {

/// Throws Error, naming the pass, unless it is supported and `dtype` is float32.
void require(bool supported, const char* pass, const Conv2dGeometry& g, DType dtype);

/// As conv2d_forward_direct(): each element is one chain of fused multiply-adds from its bias on.
void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out,
             bool relu);
/// As conv2d_pool_backward_cpu(). `x_grad`, or `weight_grad` and `bias_grad`, or the last alone may be undefined.
void pool_backward(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x,
                   const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad, const Tensor& bias_grad);

}  // namespace lockstep::conv2d_portable
