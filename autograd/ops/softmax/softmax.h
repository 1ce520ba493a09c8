#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// exp(x) / sum(exp(x)) along `dim`, computed as exp(x - max): no overflow. Floating-point tensors of any shape;
/// float16 and bfloat16 are computed in float. A slice that holds NaN or +inf, or only -inf, gives NaN, as in PyTorch.
/// Throws Error for other dtypes or a dim that does not exist. With a `dtype` the input is cast to it first.
Tensor softmax(const Tensor& input, std::int64_t dim, std::optional<DType> dtype = std::nullopt);

/// log(softmax(input, dim)), computed as x - max - log(sum(exp(x - max))). Otherwise like softmax().
Tensor log_softmax(const Tensor& input, std::int64_t dim, std::optional<DType> dtype = std::nullopt);

}  // namespace lockstep
