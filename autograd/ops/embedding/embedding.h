#pragma once

#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Rows of `weight` [rows, width] chosen by `index` (int64 or int32, any shape): output [...index sizes, width].
/// Follows torch.nn.functional.embedding: the row padding_idx (negative: from the end) receives no gradient. Rows that
/// occur several times add their gradients in index order, so the result does not depend on the number of threads.
/// Throws Error naming position, value and range for an index out of range; on CUDA devices the row is NaN instead.
Tensor embedding(const Tensor& weight, const Tensor& index, std::optional<std::int64_t> padding_idx = std::nullopt);

}  // namespace lockstep
