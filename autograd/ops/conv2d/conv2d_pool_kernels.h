#pragma once

// A convolution under a pool of 2 x 2 windows: the kernels of both together.

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"

namespace lockstep {

/// True for convolutions that the CPU's kernels below take; CUDA's take any with oh and ow of at least 2.
bool conv2d_pool_supports(const Conv2dGeometry& geometry);

// Contiguous tensors, on the CPU of float32. `out`, `grad` and `positions` are [n, out, oh / 2, ow / 2]; positions as
// those of max_pool2d_kernels.h.

/// out = the pooled convolution, which itself never reaches memory, with a relu at `relu`. The bits are those of the
/// operations one by one. `bias` and `positions` may be undefined.
using Conv2dPoolForward = void(const Conv2dGeometry& geometry, const Tensor& x, const Tensor& weight,
                               const Tensor& bias, ReluPlace relu, const Tensor& out, const Tensor& positions);
Conv2dPoolForward conv2d_pool_forward_cpu, conv2d_pool_forward_cuda;

/// The gradients of a convolution from one that is zero but for an element in each window: `grad` at `positions`.
/// `x_grad`, or `weight_grad` and `bias_grad`, or the last alone may be undefined: not wanted.
using Conv2dPoolBackward = void(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& positions,
                                const Tensor& x, const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad,
                                const Tensor& bias_grad);
Conv2dPoolBackward conv2d_pool_backward_cpu, conv2d_pool_backward_cuda;

/// Note [One bit pattern for pooled gradients]
/// The sums of conv2d_pool_backward_cpu() are in another order than those of the kernels for gradients of any kind. So
/// that bits do not depend on whether a pool's gradient came as it is or was written out before (because a hook read
/// it, say), every gradient with no more than one element that is not zero in each window is taken for a pool's: true
/// for those, with what grad and positions are then. The first windows of any other tell the difference.
bool conv2d_pool_compress(const Conv2dGeometry& geometry, const Tensor& dense, Tensor& grad, Tensor& positions);

}  // namespace lockstep
