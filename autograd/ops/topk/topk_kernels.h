#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// indices [rows, k] (int64) of the k best elements of each row of x [rows, length], the best first; contiguous, 0 < k
/// <= length, any dtype but bool.
using TopKKernel = void(const Tensor& x, const Tensor& indices, bool largest);
TopKKernel topk_cpu, topk_cuda;

/// indices[r] (int64 [rows]): where in row r of x [rows, length] the element is that has k others before it, in rising
/// order with NaN last and equal ones in the order of their places; `or_nan`: the last NaN, if there is one.
/// Contiguous, with elements, not bool.
using PlaceInOrderKernel = void(const Tensor& x, std::int64_t k, bool or_nan, const Tensor& indices);
PlaceInOrderKernel place_in_order_cpu;

/// The same along `dim` of x, which the result keeps with size 1; on any device, of any dtype.
Tensor place_in_order(const Tensor& x, std::int64_t k, int dim, bool or_nan);

}  // namespace lockstep::detail
