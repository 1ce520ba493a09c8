#pragma once

// Convolutions on CUDA devices whose channels do not meet: as many groups as channels of the images and of the result.

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"

namespace lockstep::conv2d_depthwise {

/// Note [Depthwise convolutions on CUDA]
/// A channel's sum has as few terms as a filter has places, so such a convolution costs what its images cost to read
/// and write, and tensor cores gain nothing. Where the channels lie last, threads beside each other take neighbouring
/// channels, 16 bytes each, of some pixels of a row, and find a filter's values in shared memory. A weight's gradient
/// is summed over all images: each block over some rows of the result, then over the blocks in their order. How many
/// blocks there are depends on the sizes alone, not on the device, and so do the bits.

/// Whether the passes below take tensors of the dtype that lie as the geometry says. Images are aligned to 16 bytes.
bool supports(const Conv2dGeometry& g, DType dtype);

Conv2dForward forward;
Conv2dBackwardData backward_data;
/// Leaves the bias's gradient to the caller.
void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad);

}  // namespace lockstep::conv2d_depthwise
