#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Copies that record nothing. For code that works on values alone: data loading, collectives, checkpoints, optimizers.

/// Copies `source` into `target`, element by element in row-major order, casting and crossing devices as needed. Sizes
/// must be equal or `source` must broadcast to `target`. Throws Error otherwise.
void copy_values(const Tensor& source, const Tensor& target);
/// Whether the tensor is large and dense along another dimension than its last: read in row-major order it would miss
/// the cache, and copy_contiguous() is quicker.
bool lies_turned(const Tensor& tensor);
/// A new contiguous tensor with the same values.
Tensor copy_contiguous(const Tensor& tensor);
/// `tensor` itself if it is contiguous, else a contiguous copy.
Tensor as_contiguous(const Tensor& tensor);
/// A contiguous copy with another dtype or on another device (or `tensor` itself if nothing changes).
Tensor cast_values(const Tensor& tensor, DType dtype);
Tensor move_values(const Tensor& tensor, Device device);
/// Sets every element.
void fill_values(const Tensor& tensor, Scalar value);

/// A view of `length` rows from row `start` of dimension 0.
Tensor rows(const Tensor& tensor, std::int64_t start, std::int64_t length);

}  // namespace lockstep
