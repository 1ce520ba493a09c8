#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

// Tensor::view(), Tensor::reshape() and Tensor::flatten(), and the latter two as functions. They follow PyTorch:
//
// view(sizes)       the same elements in the same order under another shape, sharing memory. One size may be -1: it is
//                   computed. Throws Error if the number of elements differs or the memory layout forbids a view.
// reshape(sizes)    a view where one is possible, to the same sizes too, else a copy.
// flatten(from, to) merges dimensions from .. to (both included, negative from the end); a scalar becomes one element.

/// x.reshape(sizes).
Tensor reshape(const Tensor& x, const Shape& sizes);
/// x.flatten(start_dim, end_dim).
Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1);

// Tensor::permute(), Tensor::transpose() and Tensor::t(): views with reordered dimensions, as in PyTorch. Negative
// dimensions count from the end. Errors: a dimension out of range or named twice; t() of more than two dimensions.

/// x.permute(dims): output dimension i is input dimension dims[i].
Tensor permute(const Tensor& x, const Shape& dims);
/// x.transpose(dim0, dim1).
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);

// Tensor::expand(): a view in which dimensions of size 1 repeat (stride 0), and new leading ones may appear, as in
// PyTorch. A size of -1 keeps the present size. Elements of the result share memory, so it should not be written to.
// Throws Error if a dimension other than 1 would change.

/// x.expand(other.sizes()).
Tensor expand_as(const Tensor& x, const Tensor& other);

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

// Tensor::slice(), Tensor::narrow() and Tensor::select() (also x[i]): views of a part of a tensor, as in PyTorch.
//
// slice(dim, start, end, step)  Python's x[start:end:step] along dim: bounds beyond the ends are clamped, step >= 1.
// narrow(dim, start, length)    Throws Error unless the whole range exists; a negative start counts from the end.
// select(dim, index)            Drops dim. Throws Error if the index (negative: from the end) is out of range.

/// x.narrow(dim, start, length).
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
/// x.select(dim, index).
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);

/// x.view() of a dimension cut into `sizes`, of which one may be -1.
Tensor unflatten(const Tensor& x, std::int64_t dim, const Shape& sizes);
/// x with dimension `from` at place `to`, the others in their order: a view.
Tensor movedim(const Tensor& x, std::int64_t from, std::int64_t to);
/// The same with several: dimension from[i] at place to[i]. Throws Error for a dimension or a place that is there
/// twice.
Tensor movedim(const Tensor& x, const Shape& from, const Shape& to);
/// The diagonal of dimensions dim0 and dim1 as a last dimension: elements [i, i + offset]. A view; throws Error for
/// equal dimensions.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, std::int64_t dim0 = 0, std::int64_t dim1 = 1);

}  // namespace lockstep
