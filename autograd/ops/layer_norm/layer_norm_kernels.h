#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

// The input is contiguous, seen as [rows, width]. weight and bias are undefined or contiguous, of `width` elements of
// any floating-point dtype. `moments` is [rows, 3]: each row's mean, 1 / sqrt(var + eps), and what the rounded mean is
// off by; float64 for float64 inputs, else float32. Unless `centred`, as in rms_norm, the mean counts as 0, and the
// mean of the squares is the variance.
using LayerNormKernel = void(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output,
                             const Tensor& moments, std::int64_t rows, std::int64_t width, double eps, bool centred);
LayerNormKernel layer_norm_cpu, layer_norm_cuda;
/// Undefined results are left out. grad_weight and grad_bias have the dtype of the moments.
using LayerNormBackwardKernel = void(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                     const Tensor& moments, const Tensor& grad_input, const Tensor& grad_weight,
                                     const Tensor& grad_bias, std::int64_t rows, std::int64_t width, bool centred);
LayerNormBackwardKernel layer_norm_backward_cpu, layer_norm_backward_cuda;

}  // namespace lockstep
