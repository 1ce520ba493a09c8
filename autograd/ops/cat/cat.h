#pragma once

#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Joining and cutting, as in PyTorch. Negative dimensions count from the end.

/// The tensors one after the other along dim. All other sizes and the device must be equal; dtypes are promoted;
/// tensors of shape [0] are skipped. Throws Error naming the tensor that does not fit.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// The tensors, of equal shapes, along a new dimension dim.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// Views of `size` elements each along dim; the last may be smaller.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
/// Views of the given sizes along dim, which must add up to x.size(dim).
std::vector<Tensor> split_with_sizes(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
/// Views of ceil(x.size(dim) / chunks) elements each along dim: at most `chunks` of them; of a dimension without
/// elements as many, and an error for more than 2^24.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);

/// `sections` views along dim whose sizes differ by one at most, the larger ones first.
std::vector<Tensor> tensor_split(const Tensor& x, std::int64_t sections, std::int64_t dim = 0);
/// Views that are cut before these indices along dim, as Python's slices between them.
std::vector<Tensor> tensor_split(const Tensor& x, const std::vector<std::int64_t>& indices, std::int64_t dim = 0);
/// cat() along dimension 1 (0 for vectors), along dimension 0, and along dimension 2, of tensors that are first made
/// to have one, two and three dimensions; vectors as columns beside matrices.
Tensor hstack(const std::vector<Tensor>& tensors);
Tensor vstack(const std::vector<Tensor>& tensors);
Tensor dstack(const std::vector<Tensor>& tensors);
Tensor column_stack(const std::vector<Tensor>& tensors);
/// x.select(dim, i) for each i: views.
std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim = 0);

}  // namespace lockstep
