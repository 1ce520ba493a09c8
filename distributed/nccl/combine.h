#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep::distributed::nccl {

// Kernels beside NCCL's, on the current stream; contiguous floating-point tensors of one dtype and size. Halves are
// computed in float and rounded once, as on the CPU.

/// values = values / divisor.
void divide(const Tensor& values, double divisor);
/// sum = sum + other.
void add(const Tensor& sum, const Tensor& other);
/// output = sum / the one float64 element of `divisor`, on the same device; undefined: 1.
void finish(const Tensor& output, const Tensor& sum, const Tensor& divisor);

}  // namespace lockstep::distributed::nccl
