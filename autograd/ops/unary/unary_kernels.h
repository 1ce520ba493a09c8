#pragma once

// What the unary family asks of a device.

#include <cstdint>

#include "lockstep/core/kernel_table.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

enum class UnaryOp : std::uint8_t {
  neg,
  abs,
  relu,
  clamp,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  pow,
  tanh,
  sigmoid,
  leaky_relu,
  gelu,
  gelu_tanh,
  silu,
};
inline constexpr int kUnaryOps = 17;
/// "relu"; tells the operations apart in a profile.
const char* profile_label(UnaryOp op);

/// pow: a is the exponent. leaky_relu: a is the slope. clamp: a and b are the bounds, infinite if there is none.
struct UnaryParams {
  double a = 0.0;
  double b = 0.0;
};

/// out = op(x), computed in the type of Note [Compute types] for out's dtype.
using UnaryKernel = void(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& out);
UnaryKernel unary_cpu, unary_cuda;
/// out = grad * op'(saved), where `saved` is the operation's input or output, as its functor wants.
using UnaryBackwardKernel = void(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved,
                                 const Tensor& out);
UnaryBackwardKernel unary_backward_cpu, unary_backward_cuda;

}  // namespace lockstep
