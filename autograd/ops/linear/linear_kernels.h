#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// out = x * weight^T + bias, then max(0, out) if `relu`. x is [rows, in], weight [out, in], bias [out] or undefined,
/// out [rows, out]; all contiguous, of one dtype and on one device, no side 0.
using LinearForward = void(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, bool relu);
LinearForward linear_forward_reference, linear_forward_cpu, linear_forward_cuda;
/// out[j] = sum of grad[i][j] over i; grad is [rows, columns], contiguous.
using LinearBiasGrad = void(const Tensor& grad, const Tensor& out);
LinearBiasGrad linear_bias_grad_cpu, linear_bias_grad_cuda;
}  // namespace lockstep
