#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Sums `grad` down to shape `sizes`, which must broadcast to grad's: the gradient of an operand that was broadcast.
/// `grad` itself if the shapes are equal. Records nothing. Float sums are blocked, see Note [Blocked sums].
Tensor sum_to(const Tensor& grad, const Shape& sizes);
/// The same, recorded.
Tensor recorded_sum_to(const Tensor& grad, const Shape& sizes);

}  // namespace lockstep
