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

/// softmax(-input, dim).
Tensor softmin(const Tensor& input, std::int64_t dim, std::optional<DType> dtype = std::nullopt);

/// softmax((logits + g) / tau, dim) with Gumbel noise g, drawn as rand(): a differentiable draw from the categories, as
/// torch.nn.functional.gumbel_softmax. `hard`: the largest is 1 and the others 0, with the gradient of the soft one.
/// Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax" (2017). Throws Error unless tau > 0.
Tensor gumbel_softmax(const Tensor& logits, double tau = 1.0, bool hard = false, std::int64_t dim = -1);

}  // namespace lockstep
