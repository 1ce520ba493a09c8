#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// x.gather(dim, index): output[i][j][k] = x[i][index[i][j][k]][k] for dim = 1, and so on; the output has index's
/// shape. Follows PyTorch: index (int64, int32 or uint8) has as many dimensions as x and is no larger than x in any but
/// dim; a scalar counts as a tensor of one element.
/// Repeated positions add their gradients in index order. Throws Error naming position, value and range for a bad
/// index; on CUDA devices the element is NaN (bool: true; integers: all bits set) instead.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);

/// x.index_select(dim, index): output[.., k, ..] = x[.., index[k], ..] along dim, as a copy; follows PyTorch.
/// `index` is int64 or int32, with at most one dimension, on x's device; values lie in [0, x.size(dim)) and may repeat:
/// their gradients are added in the order of k, so the result does not depend on the number of threads.
/// A scalar counts as a tensor of one element, and stays one. Throws Error naming position, value and range for an
/// index out of range; on CUDA devices, whose values the host does not wait for, the row chosen so is NaN (bool: true;
/// integers: all bits set) instead.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);

/// A copy of x with source[i][j][k] at [index[i][j][k]][j][k] for dim = 0, and so on. `index` as in gather(); `source`
/// is at least as large as it in every dimension. Of elements for one place the last stays. Gradients as in PyTorch:
/// x's is 0 where something was written, the source's is that of the element that stayed. Throws Error as gather()
/// does, and unless both have one dtype. Waits for the device; on CUDA devices a bad position is left out.
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value);
/// The same with the elements added, in index order, and without waiting. Sums of neighbours in a graph:
///   scatter_add(zeros({nodes, width}), 0, target.unsqueeze(1).expand({-1, width}), messages)
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// A copy of x with slice k of `source` along dim added to slice index[k], in the order of k: index_select()'s adjoint.
/// A scalar counts as a tensor of one element. Throws Error as index_select() does.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// The same with alpha times the source.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source, double alpha);

/// A copy of x with each element that the index names combined with its elements of `source`: `reduce` is "sum",
/// "prod", "mean", "amax" or "amin". Without `include_self` what x held there does not count. Semantics and gradients
/// of torch.scatter_reduce: equal extremes share the gradient, means of integers are rounded downwards. Elements are
/// combined in index order, one thread a line, so the bits do not depend on threads. Throws Error as scatter_add()
/// does, and for another word. "prod", "amax" and "amin" are for the CPU.
Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source,
                      std::string_view reduce, bool include_self = true);
/// scatter() that adds or multiplies: `reduce` is "add" or "multiply", as in torch.scatter.
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce);
/// scatter_reduce() of whole slices: slice k of `source` along dim goes to slice index[k]; `reduce` is "prod", "mean",
/// "amax" or "amin". torch.index_reduce.
Tensor index_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source,
                    std::string_view reduce, bool include_self = true);
/// A copy of x whose slices index[k] along dim are slices k of `source`; of several for one slice the last stays.
Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// A copy of x whose slices index[k] along dim are filled with a number, or with a tensor without dimensions.
Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value);
Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& value);
/// gather() whose operands broadcast along all dimensions but dim. Positions may be negative. torch.take_along_dim.
Tensor take_along_dim(const Tensor& x, const Tensor& index, std::int64_t dim);
/// The same of all elements in row-major order.
Tensor take_along_dim(const Tensor& x, const Tensor& index);
/// The elements of x in row-major order that the index names, in its shape. torch.take.
Tensor take(const Tensor& x, const Tensor& index);

/// How often each number from 0 to the largest (at least to minlength - 1) occurs in x (integers, one dimension), or
/// the sum of the weights there, in float32 if that is theirs, else in float64; waits for the device. Throws Error for
/// negative numbers.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t minlength = 0);
}  // namespace lockstep
