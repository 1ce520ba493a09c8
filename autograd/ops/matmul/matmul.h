#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Matrix product with torch.matmul's rules:
/// - both 1-D: the dot product, a scalar;
/// - both 2-D: the matrix product;
/// - 1-D and 2-D: a vector is a row on the left and a column on the right; that dimension is dropped from the result;
/// - otherwise batched: the last two dimensions are matrices, the leading ones broadcast.
/// Tensors of one dtype on one device; float16 and bfloat16 accumulate in float, integers wrap. An empty inner
/// dimension gives zeros. Throws Error for bool tensors, scalars, and sizes that do not fit.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace lockstep
