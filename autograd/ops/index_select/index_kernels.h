#pragma once

#include "core/kernel_table.h"
#include "core/tensor.h"

namespace lockstep::detail {

// Rows chosen by an index, and their adjoint: shared by index_select and embedding. For .cpp files of ops only.

/// out[o, k, :] = x[o, index[k], :]; x is [outer, size, inner], out [outer, n, inner], index int64 with n elements; all
/// contiguous, any dtype. `op` names the operation in the Error for an index out of range.
using IndexSelectKernel = void (*)(const Tensor& x, const Tensor& index, const Tensor& out, const char* op);
void index_select_cpu(const Tensor& x, const Tensor& index, const Tensor& out, const char* op);

/// out[o, index[k], :] += grad[o, k, :], k in rising order for each row of out. float32 or float64, contiguous; the
/// index was checked by the forward pass.
using IndexAddKernel = void (*)(const Tensor& grad, const Tensor& index, const Tensor& out);
void index_add_cpu(const Tensor& grad, const Tensor& index, const Tensor& out);

inline constexpr KernelTable<IndexSelectKernel> index_select_kernel{"index_select", index_select_cpu};
inline constexpr KernelTable<IndexAddKernel> index_add_kernel{"index_select backward", index_add_cpu};

/// Checks that `index` has an integer dtype and lies on x's device; returns it contiguous and int64.
Tensor prepare_index(const Tensor& index, const Tensor& x, const char* op);

/// Throws Error naming op, position, value and range if one of the n values is outside [0, size). Host memory.
void check_index_range(const std::int64_t* index, std::int64_t n, std::int64_t size, const char* op);

/// Gradient of index_select for x of shape `sizes`, in grad's dtype; the half types are summed in float.
Tensor index_add_rows(const Tensor& grad, const Tensor& index, const Shape& sizes, int dim);

/// `sizes` seen as [outer, sizes[dim], inner].
Shape around_dim(const Shape& sizes, int dim);

}  // namespace lockstep::detail
