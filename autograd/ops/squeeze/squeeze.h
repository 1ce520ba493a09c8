#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Tensor::squeeze() and Tensor::unsqueeze(): views without, or with, dimensions of size 1, as in PyTorch. squeeze()
// drops all of them, squeeze(dim) drops dim if its size is 1; unsqueeze(dim) inserts one, -1 being the last place.

/// x.squeeze().
Tensor squeeze(const Tensor& x);
/// x.squeeze(dim).
Tensor squeeze(const Tensor& x, std::int64_t dim);
/// Drops those of `dims` whose size is 1.
Tensor squeeze(const Tensor& x, const Shape& dims);
/// x.unsqueeze(dim).
Tensor unsqueeze(const Tensor& x, std::int64_t dim);

}  // namespace lockstep
