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

/// A view with the last two dimensions swapped.
Tensor transposed_view(const Tensor& matrices);

}  // namespace lockstep
