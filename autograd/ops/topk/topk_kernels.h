#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// indices [rows, k] (int64) of the k best elements of each row of x [rows, length], the best first; contiguous, 0 < k
/// <= length, any dtype but bool.
using TopKKernel = void(const Tensor& x, const Tensor& indices, bool largest);
TopKKernel topk_cpu, topk_cuda;

}  // namespace lockstep::detail
