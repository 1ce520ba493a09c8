#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Tensor::slice(), Tensor::narrow() and Tensor::select() (also x[i]): views of a part of a tensor, as in PyTorch.
//
// slice(dim, start, end, step)  Python's x[start:end:step] along dim: bounds beyond the ends are clamped, step >= 1.
// narrow(dim, start, length)    Throws Error unless the whole range exists; a negative start counts from the end.
// select(dim, index)            Drops dim. Throws Error if the index (negative: from the end) is out of range.

/// x.narrow(dim, start, length).
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
/// x.select(dim, index).
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);

}  // namespace lockstep
