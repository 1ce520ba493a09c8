#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// The root of the sum of squares over all elements (empty dims) or the given dims; torch.linalg.vector_norm of order
/// 2. Its gradient where it is 0 is 0. Throws Error unless `x` is floating-point.
Tensor norm(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

}  // namespace lockstep
