#pragma once

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Mean over output.h x output.w windows that tile x: row i of the result covers rows floor(i * h / oh) to
/// ceil((i + 1) * h / oh), as torch.nn.functional.adaptive_avg_pool2d. x is [n, c, h, w] or [c, h, w]. Floating-point
/// tensors; halves are summed in float. Throws Error for an empty image or a negative output size.
Tensor adaptive_avg_pool2d(const Tensor& x, Size2d output);

}  // namespace lockstep
