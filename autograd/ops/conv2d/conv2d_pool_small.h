#pragma once

// Convolution, bias, pool and relu in one kernel, for images so small that a block holds one in shared memory: there a
// library spends most of its time on starting kernels and on moving what never needs to leave the chip.

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"

namespace lockstep::conv2d_pool_small {

// Kernels of 3 x 3 or 5 x 5 with stride 1, dilation 1 and one group. What is supported depends on geometry and dtype
// alone. Arguments as those of conv2d_pool_forward_cuda() and conv2d_pool_backward_cuda().

bool supports_forward(const Conv2dGeometry& g, DType dtype);
void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, ReluPlace relu,
             const Tensor& out, const Tensor& positions);

/// The gradients of weight and bias; takes the one gradient in four that the pool lets through.
bool supports_weight(const Conv2dGeometry& g, DType dtype);
void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x,
                     const Tensor& weight_grad, const Tensor& bias_grad);

bool supports_data(const Conv2dGeometry& g, DType dtype);
void backward_data(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& weight,
                   const Tensor& x_grad);

}  // namespace lockstep::conv2d_pool_small
