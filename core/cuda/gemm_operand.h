#pragma once

#include "lockstep/core/cuda/gemm.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// The last two dimensions of `tensor` as matrices and those in front of them as the batch. A tensor that a Gemm cannot
/// read as it lies (neither dimension dense, a batch without one stride, not at kGemmAlignment) is replaced by a
/// contiguous copy. Gives no batch stride if there is one matrix only.
GemmOperand gemm_operand(Tensor& tensor);

}  // namespace lockstep::cuda
