#pragma once

#include <vector>

#include "lockstep/core/scalar.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// Elements chosen by tensors, as in PyTorch.
//
// An index is a list with a tensor for each dimension of x from the first on, fewer than x has meaning all of the rest:
//   int64 or int32   positions; negative ones count from the end
//   bool             a mask over as many dimensions as it has: the positions where it is true
//   undefined        all of the dimension, Python's `:`
// Tensors of positions broadcast to one shape, which takes the place of the dimensions they index: where these stand
// side by side, there, else in front of the others. Functions that ask where a mask is true wait for its device.

/// x[indices], as a copy. Repeated positions add their gradients. Throws Error for masks and positions that do not fit;
/// on CUDA devices a position out of range gives NaN (bool: true; integers: all bits set) instead.
Tensor index(const Tensor& x, const std::vector<Tensor>& indices);
/// x with `values`, of x's dtype, at x[indices], whose shape they broadcast to. Of values for one position the last
/// stays; `accumulate` adds all of them to x instead. Waits for the device. Throws Error as index() does.
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values, bool accumulate = false);

/// The elements of x where `mask` is true, in row-major order; both broadcast. One dimension.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// x with a value where `mask` is true; both broadcast. The result has x's dtype, whose category must hold the value's.
/// A tensor as value has no dimensions.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

/// int64 [n, x.dim()]: the positions of the n elements that are not 0, in row-major order. Waits for the device.
Tensor nonzero(const Tensor& x);

}  // namespace lockstep
