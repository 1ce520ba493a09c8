#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// out = x gathered along dim by a contiguous int64 index; x may be strided, out is contiguous. Any dtype. An
/// index out of range is an Error on the CPU; on CUDA devices see IndexSelectKernel.
using GatherKernel = void(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
GatherKernel gather_cpu, gather_cuda;

/// The adjoint: out (contiguous, zeros, float32 or float64) at the gathered positions += grad (contiguous, index's
/// shape), repeated positions in index order.
using GatherBackwardKernel = void(const Tensor& grad, int dim, const Tensor& index, const Tensor& out);
GatherBackwardKernel gather_backward_cpu, gather_backward_cuda;

/// out (contiguous) at the positions that gather() would read = source (contiguous, index's shape, out's dtype); of
/// repeated ones the last in index order counts. The index is in range.
using ScatterKernel = void(const Tensor& source, int dim, const Tensor& index, const Tensor& out);
ScatterKernel scatter_cpu;

}  // namespace lockstep::detail
