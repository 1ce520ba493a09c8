#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// out = x gathered along dim by an int64 index of prepare_positions(); x may be strided, out is contiguous. Any dtype.
/// For an index out of range on CUDA devices see IndexSelectKernel.
using GatherKernel = void(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
GatherKernel gather_cpu, gather_cuda;

/// Records `out`, whose values are those of x along dim at the positions of the index, as gathered from x.
void record_gather(const Tensor& out, const Tensor& x, int dim, const Tensor& index);

/// The adjoint: out (contiguous, zeros, float32, float64 or int64) at the gathered positions += grad (contiguous,
/// index's shape), repeated positions in index order.
using GatherBackwardKernel = void(const Tensor& grad, int dim, const Tensor& index, const Tensor& out);
GatherBackwardKernel gather_backward_cpu, gather_backward_cuda;

/// out (contiguous) at the positions that gather() would read = source (contiguous, index's shape, out's dtype); of
/// repeated ones the last in index order counts. The index is in range.
using ScatterKernel = void(const Tensor& source, int dim, const Tensor& index, const Tensor& out);
ScatterKernel scatter_cpu;

/// How scatter_reduce() combines what meets at one place.
enum class ScatterReduce : std::uint8_t { product, maximum, minimum };
/// out (contiguous, float32, float64 or int64) at the positions of the index combined with source (contiguous, of out's
/// dtype and the index's shape), repeated positions in index order. NaN is the extreme. Positions are in range.
using ScatterReduceKernel = void(ScatterReduce reduce, const Tensor& source, int dim, const Tensor& index,
                                 const Tensor& out);
ScatterReduceKernel scatter_reduce_cpu;

/// The positions along dim, [n] and of the index's dtype, where `index` says the same of each line of an x of these
/// sizes: it was expanded, and is as large as x but along dim. Else undefined.
Tensor index_of_slices(const Tensor& index, int dim, const Shape& sizes);

/// `index` as int64, checked to lie on x's device and, on the CPU, to point into x along dim. On the CPU it stays
/// expanded where it was, elsewhere if index_of_slices() is defined; else it is contiguous.
Tensor prepare_positions(const Tensor& index, const Tensor& x, int dim, const char* op);

/// The index of a scatter, prepared so and checked against x and the source.
Tensor scatter_index(const Tensor& x, int dim, const Tensor& index, const Tensor& source, const char* op);
/// The part of the source that an index of these sizes names a place for.
Tensor scattered_part(const Tensor& source, const Shape& sizes);

}  // namespace lockstep::detail
