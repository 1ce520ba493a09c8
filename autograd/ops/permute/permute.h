#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Tensor::permute(), Tensor::transpose() and Tensor::t(): views with reordered dimensions, as in PyTorch. Negative
// dimensions count from the end. Errors: a dimension out of range or named twice; t() of more than two dimensions.

/// x.permute(dims): output dimension i is input dimension dims[i].
Tensor permute(const Tensor& x, const Shape& dims);
/// x.transpose(dim0, dim1).
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);

}  // namespace lockstep
