#pragma once

// What conv2d takes from the device's library: cuDNN, or what stands in for it on the emulated device.

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"

namespace lockstep::conv2d_device {

/// Queues out = conv(x, weight), of tensors that lie as the geometry says. Does the rest of a forward pass too if it
/// can do all of it: adds `bias`, which may be undefined, and takes max(0, out) if `relu`; returns whether it did.
bool forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out,
             bool relu);
void backward_data(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad);
void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad);

/// Whether the library has all three passes for tensors like x that lie as the geometry says.
bool supports(const Conv2dGeometry& g, const Tensor& x);

/// Throws Error, saying why, if the library cannot be opened or is too old for this build.
void require_library();

/// What the library takes the result's sizes to be; it is told of the geometry as for the passes, but no device is
/// needed.
Shape output_sizes(const Conv2dGeometry& g, DType dtype);

}  // namespace lockstep::conv2d_device
