#pragma once

#include "lockstep/core/kernel_table.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// out = a * b for each matrix of a batch: a is [..., m, k] and b [..., k, n] with any strides (0 included) and equal
/// leading sizes, out is [..., m, n], contiguous. No side is 0. All of one dtype and on one device.
using MatmulKernel = void(const Tensor& a, const Tensor& b, const Tensor& out);
MatmulKernel matmul_reference, matmul_cpu, matmul_cuda;

/// a * b without recording, for the backward of operations that end in matrix products: 2-D or batched with equal
/// leading sizes, any strides; a new contiguous tensor.
Tensor matmul_values(const Tensor& a, const Tensor& b);

/// Offset in elements of matrix `index` of a batch.
inline std::int64_t matrix_offset(const Tensor& t, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = t.dim() - 3; d >= 0; --d) {
    offset += index % t.sizes()[d] * t.strides()[d];
    index /= t.sizes()[d];
  }
  return offset;
}

/// The sizes of a batch in front of those of its matrices.
inline Shape leading_of(const Tensor& t) {
  Shape leading;
  for (int d = 0; d < t.dim() - 2; ++d) leading.push_back(t.sizes()[d]);
  return leading;
}

/// A view with the last two dimensions swapped.
Tensor transposed_view(const Tensor& matrices);

}  // namespace lockstep
