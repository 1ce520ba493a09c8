#pragma once

#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// relu(max_pool2d(conv2d(x, weight, bias, options), 2)) as one operation, the usual block of a convolutional net. The
/// result is that of the three operations, the gradients but for the order of their sums. On the CPU, in float32, for
/// stride 1, dilation 1 and one group, the convolution's result never reaches memory, and backward() computes with the
/// one gradient in four that the pool lets through; else the three operations run one after the other. On a CUDA device
/// bias, pool and relu are one pass over the convolution's result, which is not kept. Throws Error as conv2d() and
/// max_pool2d() do.
Tensor conv2d_pool_relu(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const Conv2dOptions& options = {});

}  // namespace lockstep
