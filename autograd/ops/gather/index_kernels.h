#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// a + b; integers that leave their range wrap around, as in PyTorch.
template <typename T>
LOCKSTEP_HOST_DEVICE inline T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

// Rows chosen by an index, and their adjoint: shared by index_select and embedding. For .cpp files of ops only.

/// out[o, k, :] = x[o, index[k], :]; x is [outer, size, inner], out [outer, n, inner], index int64 with n elements; all
/// contiguous, any dtype. `op` names the operation in the Error for an index out of range; on CUDA devices, whose
/// values the host does not wait for, such a row becomes NaN (floating point), true (bool) or all bits set.
using IndexSelectKernel = void(const Tensor& x, const Tensor& index, const Tensor& out, const char* op);
IndexSelectKernel index_select_cpu, index_select_cuda;
/// The kernel of x's device.
IndexSelectKernel index_select_values;

/// out[o, index[k], :] += grad[o, k, :] for an out of zeros, k in rising order for each row of out (on CUDA devices in
/// a fixed order). float32, float64 or int64, contiguous. Indices that are out of range have been refused, or are left
/// out.
using IndexAddKernel = void(const Tensor& grad, const Tensor& index, const Tensor& out);
IndexAddKernel index_add_cpu, index_add_cuda;
/// The kernel of grad's device. On the CPU `out` may hold anything: it is added to.
IndexAddKernel index_add_values;

/// Checks that `index` has an integer dtype and lies on x's device; returns it contiguous and int64.
Tensor prepare_index(const Tensor& index, const Tensor& x, const char* op);
/// Whether an embedding's weight and index were given the other way round, which their dtypes tell.
inline bool index_comes_first(const Tensor& weight, const Tensor& index) {
  return weight.defined() && index.defined() && !weight.is_floating_point() && index.is_floating_point();
}

/// Throws Error naming op, position, value and range if one of the n values is outside [0, size). Host memory.
void check_index_range(const std::int64_t* index, std::int64_t n, std::int64_t size, const char* op);

/// Gradient of index_select for x of shape `sizes`, in grad's dtype: the half types are summed in float, int64 as it
/// is.
Tensor index_add_rows(const Tensor& grad, const Tensor& index, const Shape& sizes, int dim);

/// `sizes` seen as [outer, sizes[dim], inner].
Shape around_dim(const Shape& sizes, int dim);

}  // namespace lockstep::detail
