#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// out = x where column - row <= diagonal (upper: >= diagonal), else 0; contiguous, of one dtype, of any, with at least
/// one element.
using TriangleKernel = void(const Tensor& x, const Tensor& out, std::int64_t diagonal, bool upper);
TriangleKernel triangle_cpu, triangle_cuda;

}  // namespace lockstep::detail
