#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Tensor::expand(): a view in which dimensions of size 1 repeat (stride 0), and new leading ones may appear, as in
// PyTorch. A size of -1 keeps the present size. Elements of the result share memory, so it should not be written to.
// Throws Error if a dimension other than 1 would change.

/// x.expand(other.sizes()).
Tensor expand_as(const Tensor& x, const Tensor& other);

}  // namespace lockstep
