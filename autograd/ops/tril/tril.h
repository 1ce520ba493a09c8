#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// x [..., rows, columns] with 0 above the given diagonal: what is kept has column - row <= diagonal. Any dtype;
/// semantics of torch.tril. Throws Error for fewer than two dimensions.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
/// With 0 below it: what is kept has column - row >= diagonal.
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

}  // namespace lockstep
