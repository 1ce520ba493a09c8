#pragma once

#include <optional>
#include <utility>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Reductions over any dimensions: `dims` lists them (negative counts from the end; none listed means all), and
// `keepdim` keeps them with size 1. Half types accumulate in float32 and double, see Note [Blocked sums]. All throw
// Error for a dimension out of range or named twice. PyTorch semantics.

/// Sum. Integer and bool tensors give int64. The sum over no elements is 0. With a `dtype` x is cast to it first.
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, DType dtype);
/// Arithmetic mean of a floating-point tensor; NaN over no elements. With a `dtype` x is cast to it first.
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Shape& dims, bool keepdim, DType dtype);
/// Variance of a floating-point tensor: squared differences from the mean (two passes), divided by n - correction.
Tensor var(const Tensor& x, const Shape& dims = {}, double correction = 1.0, bool keepdim = false);
/// Largest (smallest) element; NaN if any is. Equal extremes share the gradient evenly: NaNs too where no dimension is
/// named, as in torch.max, while a NaN along the named ones makes the gradient there NaN, as in torch.amax. Throws
/// Error over no elements.
Tensor max(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// log(sum(exp(x))), in float32 for integers, shifted by the maximum so that it neither overflows nor vanishes; -inf
/// over no elements.
Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim = false);

/// int64 index of the first largest (smallest) element along `dim`, or of the flattened tensor without `dim`. NaN
/// counts as the extreme. Not differentiable. Throws Error over no elements.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);

/// Whether all (any) elements differ from 0; true (false) over no elements. Bool.
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

/// sqrt(var(x)). Its gradient where it is 0 is 0.
Tensor std(const Tensor& x, const Shape& dims = {}, double correction = 1.0, bool keepdim = false);
/// max() and min() by PyTorch's names.
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

/// var() and mean(), std() and mean(), as torch.var_mean and torch.std_mean.
std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Shape& dims = {}, double correction = 1.0,
                                   bool keepdim = false);
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Shape& dims = {}, double correction = 1.0,
                                   bool keepdim = false);
/// sum() and mean() of the elements that are not NaN.
Tensor nansum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor nanmean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// int64: how many elements are not 0.
Tensor count_nonzero(const Tensor& x, const Shape& dims = {});
}  // namespace lockstep
