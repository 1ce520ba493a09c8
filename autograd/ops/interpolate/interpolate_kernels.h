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
  bool cubic = false;  ///< four elements a place, as resample_cpu() and resample_cuda() alone know it
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

/// One axis of [outer, in, inner], for modes and shapes that are done axis by axis.
struct ResampleGeometry {
  std::int64_t outer = 1, inner = 1;
  InterpolateAxis axis;
};
/// As InterpolateForward and InterpolateBackward.
using ResampleForward = void(const ResampleGeometry& geometry, const Tensor& x, const Tensor& out);
ResampleForward resample_cpu, resample_cuda;
using ResampleBackward = void(const ResampleGeometry& geometry, const Tensor& grad, const Tensor& x_grad);
ResampleBackward resample_backward_cpu, resample_backward_cuda;

}  // namespace lockstep
