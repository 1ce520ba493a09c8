#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Where interpolate() takes its values: the pixel below, or a mean of the four around, weighted by their distance.
enum class InterpolateMode : std::uint8_t { nearest, bilinear };
/// Options of interpolate().
struct InterpolateOptions {
  Size2d size = 0;            ///< of the result; 0: given by scale_factor
  double scale_factor = 0.0;  ///< the result's size is floor(size * scale_factor); 0: given by size
  InterpolateMode mode = InterpolateMode::nearest;
  bool align_corners = false;  ///< of bilinear: the corner pixels' centres stay where they are
};
/// Images [n, c, h, w] or [c, h, w] of another size, as
/// torch.nn.functional.interpolate. Floating-point tensors; halves are computed in float. Gradients are added in a
/// fixed order. Throws Error unless exactly one of size and scale_factor is given and no size is 0.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

}  // namespace lockstep
