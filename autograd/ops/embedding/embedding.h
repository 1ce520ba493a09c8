#pragma once

#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of embedding(), beside the defaults.
struct EmbeddingLookup {
  std::optional<std::int64_t> padding_idx = std::nullopt;  ///< this row (negative: from the end) receives no gradient
  /// Rows that are looked up and whose norm is larger are scaled down to it first, in `weight` itself.
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2.0;           ///< the power of that norm; infinity: the largest magnitude
  bool scale_grad_by_freq = false;  ///< divide a row's gradient by the number of its occurrences in the index
};

/// Rows of `weight` [rows, width] chosen by `index` (int64 or int32, any shape): output [...index sizes, width].
/// Follows torch.nn.functional.embedding: the row padding_idx (negative: from the end) receives no gradient. Rows that
/// occur several times add their gradients in index order, so the result does not depend on the number of threads.
/// Throws Error naming position, value and range for an index out of range; on CUDA devices the row is NaN instead.
Tensor embedding(const Tensor& weight, const Tensor& index, std::optional<std::int64_t> padding_idx = std::nullopt);
/// The same with all options of PyTorch.
Tensor embedding(const Tensor& weight, const Tensor& index, const EmbeddingLookup& options);

}  // namespace lockstep
