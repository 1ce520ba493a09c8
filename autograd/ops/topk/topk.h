#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// What topk() finds: `const auto [values, indices] = topk(x, 5);`
struct TopK {
  Tensor values;   ///< of x's dtype; its gradient goes to the elements that were taken
  Tensor indices;  ///< int64, along the dimension
};

/// The k largest (or smallest) elements of each slice along `dim`, the best first. Semantics of torch.topk with sorted
/// = true; NaN counts as the largest value, and of equal elements the first is taken. Throws Error unless 0 <= k <=
/// x.size(dim), for scalars with k > 1, and for bool.
TopK topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

/// All elements of each slice along `dim`, the smallest (`descending`: largest) first; equal ones keep their order.
/// Semantics of torch.sort with stable = true; NaN counts as the largest value. On CUDA devices it takes time that
/// grows with the square of the slices' length: for slices of thousands, sort on the CPU.
TopK sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// Its indices.
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);

/// The median of all elements, the lower one of two, NaN if there is one; its gradient goes to one element. Throws
/// Error for an empty tensor.
Tensor median(const Tensor& x);
/// The same along dim, with its place: `auto [values, indices] = median(x, 1);`
TopK median(const Tensor& x, std::int64_t dim, bool keepdim = false);
}  // namespace lockstep
