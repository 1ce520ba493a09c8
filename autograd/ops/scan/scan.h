#pragma once

#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Sums and products in order along a dimension. Each slice is added up by one thread from its first element to its
// last, in the type of Note [Compute types]: the same bits on every number of threads. Integers and bool give int64,
// with a `dtype`, to which x is cast first, that.

/// out[i] = x[0] + ... + x[i] along dim. A scalar is itself. Throws Error for a dim that does not exist.
Tensor cumsum(const Tensor& x, std::int64_t dim, std::optional<DType> dtype = std::nullopt);
/// out[i] = x[0] * ... * x[i] along dim; its gradient is exact for zeros too.
Tensor cumprod(const Tensor& x, std::int64_t dim, std::optional<DType> dtype = std::nullopt);
/// The product over dim, or over all elements; 1 over no elements. Its gradient is exact for zeros too.
Tensor prod(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false,
            std::optional<DType> dtype = std::nullopt);

}  // namespace lockstep
