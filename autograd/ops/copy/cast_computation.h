#pragma once

// Casts as part of Note [Pending values]. For operations (.cpp files) only.

#include "lockstep/core/tensor.h"

namespace lockstep {

/// cast_values(), but that images and filters [n, channels, height, width] on a CUDA device may wait for who reads
/// them, and for the order in which he wants them (Note [Channels last]): cast and turned round, they are read once.
Tensor cast_in_either_order(const Tensor& tensor, DType dtype);

}  // namespace lockstep
