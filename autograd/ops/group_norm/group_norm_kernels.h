#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// A contiguous input [samples, groups, channels, positions].
struct GroupNormSizes {
  std::int64_t samples, groups, channels, positions;

  std::int64_t rows() const { return samples * groups; }
  std::int64_t width() const { return channels * positions; }  ///< of a row: what is normalised together
};

// All tensors are contiguous. weight and bias are undefined or have groups * channels elements of any floating-point
// dtype. `moments` are those of layer_norm_kernels.h for the rows.
using GroupNormKernel = void(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output,
                             const Tensor& moments, const GroupNormSizes& sizes, double eps);
GroupNormKernel group_norm_cpu;
/// Undefined results are left out. grad_weight and grad_bias have the dtype of the moments.
using GroupNormBackwardKernel = void(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                     const Tensor& moments, const Tensor& grad_input, const Tensor& grad_weight,
                                     const Tensor& grad_bias, const GroupNormSizes& sizes);
GroupNormBackwardKernel group_norm_backward_cpu;

}  // namespace lockstep
