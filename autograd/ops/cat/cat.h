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
/// Views of ceil(x.size(dim) / chunks) elements each along dim: at most `chunks` of them.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);

/// x.select(dim, i) for each i: views.
std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim = 0);

}  // namespace lockstep
