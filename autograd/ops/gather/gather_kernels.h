#pragma once

#include "core/kernel_table.h"
#include "core/tensor.h"

namespace lockstep::detail {

/// out = x gathered along dim by a contiguous int64 index; x may be strided, out is contiguous. Any dtype.
using GatherKernel = void (*)(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
void gather_cpu(const Tensor& x, int dim, const Tensor& index, const Tensor& out);

/// The adjoint: out (contiguous, float32 or float64) at the gathered positions += grad (contiguous, index's shape).
using GatherBackwardKernel = void (*)(const Tensor& grad, int dim, const Tensor& index, const Tensor& out);
void gather_backward_cpu(const Tensor& grad, int dim, const Tensor& index, const Tensor& out);

inline constexpr KernelTable<GatherKernel> gather_kernel{"gather", gather_cpu};
inline constexpr KernelTable<GatherBackwardKernel> gather_backward_kernel{"gather backward", gather_backward_cpu};

}  // namespace lockstep::detail
