#pragma once

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"

namespace lockstep {

/// True for convolutions that the CPU's kernels below take.
bool conv2d_pool_supports(const Conv2dGeometry& geometry);

// Contiguous tensors; on the CPU of float32, on CUDA devices any geometry with oh and ow of at least 2. `out` and
// `positions` (uint8) are [n, out, oh / 2, ow / 2]; a position says which element of its window the maximum is, in
// row-major order, or 4 for an output that relu made zero.

/// `bias` and `positions` may be undefined.
using Conv2dPoolForward = void(const Conv2dGeometry& geometry, const Tensor& x, const Tensor& weight,
                               const Tensor& bias, const Tensor& out, const Tensor& positions);
Conv2dPoolForward conv2d_pool_forward_cpu, conv2d_pool_forward_cuda;
/// `x_grad`, or `weight_grad` and `bias_grad`, or the last alone may be undefined: not wanted.
using Conv2dPoolBackward = void(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& positions,
                                const Tensor& x, const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad,
                                const Tensor& bias_grad);
Conv2dPoolBackward conv2d_pool_backward_cpu, conv2d_pool_backward_cuda;

}  // namespace lockstep
