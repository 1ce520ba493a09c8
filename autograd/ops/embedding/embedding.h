#pragma once

#include <cstdint>
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
/// Follows torch.nn.functional.embedding, whose order of the two is understood as well: the row padding_idx (negative:
/// from the end) receives no gradient. Rows that occur several times add their gradients in index order, so the result
/// does not depend on the number of threads. Throws Error naming position, value and range for an index out of range;
/// on CUDA devices the row is NaN instead.
Tensor embedding(const Tensor& weight, const Tensor& index, std::optional<std::int64_t> padding_idx = std::nullopt);
/// The same with all options of PyTorch.
Tensor embedding(const Tensor& weight, const Tensor& index, const EmbeddingLookup& options);

/// How embedding_bag() joins the rows of a bag.
enum class BagMode : std::uint8_t { sum, mean, max };
/// Options of embedding_bag().
struct EmbeddingBagLookup {
  BagMode mode = BagMode::mean;                            ///< of the rows of a bag
  std::optional<std::int64_t> padding_idx = std::nullopt;  ///< these rows count in no bag, and get no gradient
  std::optional<double> max_norm = std::nullopt;           ///< as embedding()'s
  double norm_type = 2.0;                                  ///< as embedding()'s
  bool scale_grad_by_freq = false;                         ///< as embedding()'s
  bool include_last_offset = false;                        ///< the offsets end with the number of indices
};
/// The rows of `weight` [rows, width] that each bag names, joined: [bags, width]. The bags are the rows of index [bags,
/// n], or, of an index [n], begin at the `offsets` [bags]. `weights`, if defined, of index's sizes, are factors of the
/// rows, for sums alone. An empty bag gives 0. Waits for the device if there are offsets or a padding_idx.
/// torch.nn.functional.embedding_bag, whose order of the first two is understood as well. Throws Error for what does
/// not fit.
Tensor embedding_bag(const Tensor& weight, const Tensor& index, const Tensor& offsets = {},
                     const EmbeddingBagLookup& options = {}, const Tensor& weights = {});

}  // namespace lockstep
