#pragma once

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// The sum of result * conv2d(x, weight) is linear in each of the three.
enum class Conv2dPart : std::uint8_t { result, x, weight };

/// The slope of that sum along one part, given the other two: the convolution itself, the gradient of x or that of the
/// weight. Recorded, and differentiable as often as one likes, since its own gradients are the other slopes. The tensor
/// of the part itself is not looked at. For .cpp files only.
Tensor conv2d_slope(const Conv2dGeometry& geometry, Conv2dPart along, const Tensor& result, const Tensor& x,
                    const Tensor& weight);

}  // namespace lockstep
