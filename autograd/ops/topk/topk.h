#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

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

/// The median of all elements, the lower one of two, NaN if there is one; its gradient goes to one element. NaN for an
/// empty tensor, if it is floating-point; throws Error for others that are empty.
Tensor median(const Tensor& x);
/// The same along dim, with its place: `auto [values, indices] = median(x, 1);` Throws Error for a dimension without
/// elements.
TopK median(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// The k-th smallest element (k from 1 on) of each slice along dim, and its place. torch.kthvalue.
TopK kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool keepdim = false);
/// The values at the fractions `q` (no dimension or one, of x's dtype, in [0, 1]) of the sorted elements along dim, or
/// of all elements, linearly interpolated; NaN where there is one. q's dimension comes first. float32 or float64.
/// torch.quantile. Throws Error for an empty tensor and fractions outside [0, 1].
Tensor quantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);
Tensor quantile(const Tensor& x, double q, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);

/// What unique() finds: `const auto [values, inverse, counts] = unique(x);`
struct Unique {
  Tensor values;   ///< each once
  Tensor inverse;  ///< int64, of x's sizes (of dim's): the place in `values` of each element
  Tensor counts;   ///< int64: how often each value occurs
};
/// The different elements of x in rising order; NaNs are all different. Waits for the device. Without gradients.
/// torch.unique with sorted = true.
Unique unique(const Tensor& x);
/// The different slices along dim, in the order of their elements. torch.unique_dim.
Unique unique(const Tensor& x, std::int64_t dim);
/// The elements of x in their order without those equal to the one before.
Unique unique_consecutive(const Tensor& x);

/// For each of `values` the first place in `sorted` (rising along the last dimension; of one dimension, or of values'
/// leading sizes) whose element is not below it; with `right` the first whose element is above it. int64, of values'
/// sizes, or int32. side: "left" or "right", another way to say it. Waits for the device. Throws Error for another
/// side, or right with "left". torch.searchsorted.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool out_int32 = false, bool right = false,
                    std::string_view side = {});
Tensor searchsorted(const Tensor& sorted, Scalar value, bool out_int32 = false, bool right = false,
                    std::string_view side = {});
/// searchsorted(boundaries, x, out_int32, right): which of the intervals between the boundaries [n] each element lies
/// in.
Tensor bucketize(const Tensor& x, const Tensor& boundaries, bool out_int32 = false, bool right = false);
/// How many elements lie in each of `bins` intervals of one width from min to max, max included, others being left out;
/// of x's dtype. Equal bounds stand for the smallest and largest element. Throws Error for integers, bounds in the
/// wrong order, bounds that are not finite, and for float32 2^31 bins or more. torch.histc.
Tensor histc(const Tensor& x, std::int64_t bins = 100, double min = 0.0, double max = 0.0);
/// Which elements of x are among those of `among`. Bool. Waits for the device.
Tensor isin(const Tensor& x, const Tensor& among);

}  // namespace lockstep
