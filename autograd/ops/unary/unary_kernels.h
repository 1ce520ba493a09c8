#pragma once

// What the unary family asks of a device.

#include <cstdint>

#include "lockstep/core/kernel_table.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// The family: each function's name and its functor (unary_functors.h). Those up to clamp keep integers.
// clang-format off
#define LOCKSTEP_UNARY_OPS(X) \
  X(neg, Neg) \
  X(abs, Abs) \
  X(relu, Relu) \
  X(sign, Sign) \
  X(floor, Floor) \
  X(ceil, Ceil) \
  X(round, Round) \
  X(trunc, Trunc) \
  X(clamp, Clamp) \
  X(exp, Exp) \
  X(log, Log) \
  X(sqrt, Sqrt) \
  X(rsqrt, Rsqrt) \
  X(reciprocal, Reciprocal) \
  X(square, Square) \
  X(cube, Cube) \
  X(pow, Pow) \
  X(tanh, Tanh) \
  X(sigmoid, Sigmoid) \
  X(leaky_relu, LeakyRelu) \
  X(gelu, Gelu) \
  X(gelu_tanh, GeluTanh) \
  X(silu, Silu) \
  X(sin, Sin) \
  X(cos, Cos) \
  X(hardtanh, Hardtanh) \
  X(elu, Elu) \
  X(celu, Celu) \
  X(softplus, Softplus) \
  X(logsigmoid, LogSigmoid) \
  X(softsign, Softsign) \
  X(hardswish, Hardswish) \
  X(hardsigmoid, Hardsigmoid) \
  X(mish, Mish) \
  X(erf, Erf) \
  X(log1p, Log1p) \
  X(expm1, Expm1) \
  X(log2, Log2) \
  X(log10, Log10) \
  X(tan, Tan) \
  X(sinh, Sinh) \
  X(cosh, Cosh) \
  X(atan, Atan) \
  X(asin, Asin) \
  X(acos, Acos) \
  X(asinh, Asinh) \
  X(acosh, Acosh) \
  X(atanh, Atanh) \
  X(lgamma, LogGamma) \
  X(digamma, Digamma) \
  X(erfinv, ErfInv) \
  X(erfc, Erfc) \
  X(frac, Frac) \
  X(nan_to_num, NanToNum)
// clang-format on

enum class UnaryOp : std::uint8_t {
#define LOCKSTEP_UNARY_OP(name, Functor) name,
  LOCKSTEP_UNARY_OPS(LOCKSTEP_UNARY_OP)
#undef LOCKSTEP_UNARY_OP
};
/// "relu"; tells the operations apart in a profile.
const char* profile_label(UnaryOp op);

/// pow: a is the exponent. leaky_relu: a is the slope. clamp, hardtanh: a and b are the bounds, infinite if there
/// is none. elu: a is alpha, b the scale. celu: a is alpha. softplus: a is beta, b the threshold. nan_to_num: a, b and
/// c stand for NaN, infinity and -infinity.
struct UnaryParams {
  double a = 0.0;
  double b = 0.0;
  double c = 0.0;
};

/// out = op(x), computed in the type of Note [Compute types] for out's dtype.
using UnaryKernel = void(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& out);
UnaryKernel unary_cpu, unary_cuda;
/// out = grad * op'(saved), where `saved` is the operation's input or output, as its functor wants.
using UnaryBackwardKernel = void(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved,
                                 const Tensor& out);
UnaryBackwardKernel unary_backward_cpu, unary_backward_cuda;

/// The loops of an operation on the CPU for C, float or double, over rows of neighbours. `out` may be `x` or `grad`.
template <typename C>
using UnaryRow = void (*)(UnaryParams params, const C* x, C* out, std::int64_t count);
template <typename C>
using UnaryBackwardRow = void (*)(UnaryParams params, const C* grad, const C* saved, C* out, std::int64_t count);
template <typename C>
UnaryRow<C> unary_row(UnaryOp op);
template <typename C>
UnaryBackwardRow<C> unary_backward_row(UnaryOp op);

/// UnaryBackwardKernel as recorded operations; undefined for an operation without a second derivative.
Tensor recorded_unary_gradient(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved);

}  // namespace lockstep
