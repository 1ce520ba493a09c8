#pragma once

// Functions of the unary family whose derivative has the costly part of the value in it. For operations' .cpp files
// only.

#include "lockstep/autograd/ops/unary/unary_kernels.h"

namespace lockstep {

/// Note [Slopes]
/// gelu and silu cost an erf, a tanh or a sigmoid forward, and the same again backward. Where gradients are recorded,
/// forward computes the derivative beside the value, and saves it in the input's stead: backward is a product. The bits
/// are the same: gradient = grad * slope is how the functors compute it too. What is saved has the input's size, and
/// the input, such as a product's result, may go.
constexpr bool has_slope(UnaryOp op) {
  return op == UnaryOp::gelu || op == UnaryOp::gelu_tanh || op == UnaryOp::silu;
}

/// out = op(x) and slope = op'(x) for has_slope(op); all contiguous and float32.
using UnarySlopeKernel = void(UnaryOp op, const Tensor& x, const Tensor& out, const Tensor& slope);
UnarySlopeKernel unary_slope_cpu;
/// out = grad * slope; all contiguous and float32. out may be grad.
using UnarySlopeBackwardKernel = void(UnaryOp op, const Tensor& grad, const Tensor& slope, const Tensor& out);
UnarySlopeBackwardKernel unary_slope_backward_cpu;

}  // namespace lockstep
