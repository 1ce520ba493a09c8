#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Tensor::view(), Tensor::reshape() and Tensor::flatten(), and the latter two as functions. They follow PyTorch:
//
// view(sizes)       the same elements in the same order under another shape, sharing memory. One size may be -1: it is
//                   computed. Throws Error if the number of elements differs or the memory layout forbids a view.
// reshape(sizes)    a view where one is possible, else a copy.
// flatten(from, to) merges dimensions from .. to (both included, negative from the end); a scalar becomes one element.

/// x.reshape(sizes).
Tensor reshape(const Tensor& x, const Shape& sizes);
/// x.flatten(start_dim, end_dim).
Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1);

}  // namespace lockstep
