#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// x and out [N, T, D], cosine and sine [T, D / 2] of the type that is computed in, all contiguous, with at least one
/// element. `back`: by the opposite angles.
using RotaryKernel = void(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& out, bool back);
RotaryKernel rotary_cpu, rotary_cuda;

}  // namespace lockstep::detail
