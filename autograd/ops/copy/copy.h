#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Copies, casts and moves that gradients flow through. The methods of Tensor of the same names are the same functions.

/// A contiguous copy in new memory.
Tensor clone(const Tensor& x);

}  // namespace lockstep
