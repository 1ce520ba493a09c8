#pragma once

#include <optional>

#include "lockstep/autograd/ops/topk/topk.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// Sums and products along a dimension, with the same bits on every number of threads. What runs along goes through each
// slice from its first element to its last, for float32 and float64 in double, for half types in float; prod() always
// in double, in an order that depends on the sizes alone. Integers and bool give int64, with a `dtype`, to which x is
// cast first, that.

/// out[i] = x[0] + ... + x[i] along dim. A scalar is itself. Throws Error for a dim that does not exist.
Tensor cumsum(const Tensor& x, std::int64_t dim, std::optional<DType> dtype = std::nullopt);
/// out[i] = x[0] * ... * x[i] along dim; its gradient is exact for zeros too.
Tensor cumprod(const Tensor& x, std::int64_t dim, std::optional<DType> dtype = std::nullopt);
/// log(exp(x[0]) + ... + exp(x[i])) along dim, without overflow; integers give float32. On the CPU.
Tensor logcumsumexp(const Tensor& x, std::int64_t dim);
/// The largest (smallest) of x[0], ..., x[i] along dim and, of equal ones the last, its place:
/// `const auto [values, indices] = cummax(x, 1);`. A NaN stays from where it is. On the CPU.
TopK cummax(const Tensor& x, std::int64_t dim);
TopK cummin(const Tensor& x, std::int64_t dim);
/// The product over dim, or over all elements; 1 over no elements. Its gradient is exact for zeros too.
Tensor prod(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false,
            std::optional<DType> dtype = std::nullopt);

}  // namespace lockstep
