#pragma once

#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// The root of the sum of squares over all elements (empty dims) or the given dims; torch.linalg.vector_norm of order
/// 2. Its gradient where it is 0 is 0. Throws Error unless `x` is floating-point.
Tensor norm(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

/// The norm of any order, as torch.linalg.vector_norm: sum(|x|^order)^(1 / order); for infinity and -infinity the
/// largest and the smallest magnitude, for 0 the number of elements other than 0. Its gradient where it is 0 is 0. With
/// a `dtype` x is cast to it first. Throws Error unless `x` is floating-point then.
Tensor vector_norm(const Tensor& x, double order = 2.0, const Shape& dims = {}, bool keepdim = false,
                   std::optional<DType> dtype = std::nullopt);

}  // namespace lockstep
