#pragma once

#include "core/tensor.h"

namespace lockstep {

// Reductions over any dimensions: `dims` lists them (negative counts from the end; none listed means all), and
// `keepdim` keeps them with size 1. Half types accumulate in float32 and double, see Note [Blocked sums]. All throw
// Error for a dimension out of range or named twice. PyTorch semantics.

/// Sum. Integer and bool tensors give int64. The sum over no elements is 0.
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

}  // namespace lockstep
