#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// x.index_select(dim, index): output[.., k, ..] = x[.., index[k], ..] along dim, as a copy; follows PyTorch.
/// `index` is int64 or int32, with at most one dimension, on x's device; values lie in [0, x.size(dim)) and may repeat:
/// their gradients are added in the order of k, so the result does not depend on the number of threads.
/// A scalar counts as a tensor of one element, and stays one. Throws Error naming position, value and range for an
/// index out of range; on CUDA devices, whose values the host does not wait for, the row chosen so is NaN (bool: true;
/// integers: all bits set) instead.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);

}  // namespace lockstep
