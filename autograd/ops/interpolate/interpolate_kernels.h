#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// How one axis of the result looks at x.
struct InterpolateAxis {
  std::int64_t in = 1, out = 1;  ///< sizes
  double scale = 1.0;            ///< distance of neighbours of the result in x
  bool corners = false;          ///< align_corners
  bool nearest = false;
};
/// Images: `planes` times in x in to out x out.
struct InterpolateGeometry {
  std::int64_t planes = 0;
  InterpolateAxis rows, columns;
};

/// Contiguous tensors of one floating-point dtype, with elements.
using InterpolateForward = void(const InterpolateGeometry& geometry, const Tensor& x, const Tensor& out);
InterpolateForward interpolate_cpu, interpolate_cuda;
/// Writes all of x_grad.
using InterpolateBackward = void(const InterpolateGeometry& geometry, const Tensor& grad, const Tensor& x_grad);
InterpolateBackward interpolate_backward_cpu, interpolate_backward_cuda;

}  // namespace lockstep
