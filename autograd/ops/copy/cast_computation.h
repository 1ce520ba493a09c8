#pragma once

// Casts as part of Note [Pending values]. For operations (.cpp files) only.

#include "lockstep/core/tensor.h"

namespace lockstep {

/// cast_values(), but that filters [out, in, height, width] that are parameters, and what is laid out (Note [Channels
/// last]), may wait on a CUDA device for who reads them and for the order in which they are wanted: they are cast and
/// turned round at once.
Tensor cast_in_either_order(const Tensor& tensor, DType dtype);

/// cast_values() of truths that are pending in Note [Elementwise chains], left pending too; undefined if it is to be
/// done at the call.
Tensor elementwise_cast(const Tensor& tensor, DType dtype);

}  // namespace lockstep
