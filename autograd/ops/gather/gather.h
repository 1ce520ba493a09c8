#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// x.gather(dim, index): output[i][j][k] = x[i][index[i][j][k]][k] for dim = 1, and so on; the output has index's
/// shape. Follows PyTorch: index (int64, int32 or uint8) has as many dimensions as x and is no larger than x in any but
/// dim; a scalar counts as a tensor of one element.
/// Repeated positions add their gradients in index order. Throws Error naming position, value and range for a bad
/// index; on CUDA devices the element is NaN (bool: true; integers: all bits set) instead.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);

}  // namespace lockstep
