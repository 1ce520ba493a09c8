// The slopes of unary functions, of their input x or their result y, whichever their functors keep.

#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRootOfTwoPi = 2.5066282746310002;

/// The slope of gelu's approximation by tanh.
Tensor gelu_tanh_slope(const Tensor& x) {
  constexpr double kScale = 0.79788456080286541, kCube = 0.044715;
  const Tensor t = tanh(kScale * (x + kCube * (x * square(x))));
  return 0.5 * (1.0 + t) + 0.5 * kScale * (x * (1.0 - square(t)) * (1.0 + 3.0 * kCube * square(x)));
}

Tensor mish_slope(const Tensor& x) {
  const Tensor t = tanh(softplus(x));
  return t + x * sigmoid(x) * (1.0 - square(t));
}

/// Of functions that are smooth; undefined for others.
Tensor slope_of_input(UnaryOp op, UnaryParams params, const Tensor& x) {
  switch (op) {
    case UnaryOp::log:
      return reciprocal(x);
    case UnaryOp::square:  // 2 x, whose own slope is constant, but a function of x
      return x * flat_in(full_like(x.detach(), 2.0), x);
    case UnaryOp::cube:
      return 3.0 * square(x);
    case UnaryOp::pow:
      return params.a * pow(x, params.a - 1.0);
    case UnaryOp::gelu:
      return 0.5 * (1.0 + erf(x * std::numbers::sqrt2 / 2.0)) + x * exp(-0.5 * square(x)) / kRootOfTwoPi;
    case UnaryOp::gelu_tanh:
      return gelu_tanh_slope(x);
    case UnaryOp::silu:
      return sigmoid(x) * (1.0 + x * sigmoid(-x));
    case UnaryOp::mish:
      return mish_slope(x);
    case UnaryOp::sin:
      return cos(x);
    case UnaryOp::cos:
      return -sin(x);
    case UnaryOp::logsigmoid:
      return sigmoid(-x);
    case UnaryOp::softsign:
      return reciprocal(square(1.0 + abs(x))) + (x - x);  // not a number at infinity, as the value
    case UnaryOp::erf:
      return exp(-square(x)) * (2.0 * std::numbers::inv_sqrtpi);
    case UnaryOp::erfc:
      return exp(-square(x)) * (-2.0 * std::numbers::inv_sqrtpi);
    case UnaryOp::log1p:
      return reciprocal(1.0 + x);
    case UnaryOp::log2:
      return reciprocal(x * std::numbers::ln2);
    case UnaryOp::log10:
      return reciprocal(x * std::numbers::ln10);
    case UnaryOp::sinh:
      return cosh(x);
    case UnaryOp::cosh:
      return sinh(x);
    case UnaryOp::atan:
      return reciprocal(1.0 + square(x));
    case UnaryOp::asin:
      return rsqrt(1.0 - square(x));
    case UnaryOp::acos:
      return -rsqrt(1.0 - square(x));
    case UnaryOp::asinh:
      return rsqrt(1.0 + square(x));
    case UnaryOp::acosh:
      return rsqrt(x - 1.0) * rsqrt(x + 1.0);
    case UnaryOp::atanh:
      return reciprocal(1.0 - square(x));
    case UnaryOp::lgamma:
      return digamma(x);
    default:
      return {};
  }
}

Tensor slope_of_result(UnaryOp op, const Tensor& y) {
  switch (op) {
    case UnaryOp::exp:
      return y;
    case UnaryOp::expm1:
      return 1.0 + y;
    case UnaryOp::sqrt:
      return 0.5 / y;
    case UnaryOp::rsqrt:
      return -0.5 * (y * square(y));
    case UnaryOp::reciprocal:
      return -square(y);
    case UnaryOp::tanh:
      return 1.0 - square(y);
    case UnaryOp::sigmoid:
      return y * (1.0 - y);
    case UnaryOp::tan:
      return 1.0 + square(y);
    case UnaryOp::erfinv:
      return exp(square(y)) / (2.0 * std::numbers::inv_sqrtpi);
    default:
      return {};
  }
}

/// Of functions with corners: `grad` goes through where they rise, and is 0 where they are flat.
Tensor gradient_in_parts(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& x) {
  const double a = params.a, b = params.b;
  switch (op) {
    case UnaryOp::relu:
      return where(x <= 0.0, 0.0, grad);
    case UnaryOp::abs:
      return grad * sign(x);
    case UnaryOp::sign:
    case UnaryOp::floor:
    case UnaryOp::ceil:
    case UnaryOp::round:
    case UnaryOp::trunc:
      return zeros_like(grad);
    case UnaryOp::clamp:  // a bound that is infinite is none
      if (a == -kInfinity) return b == kInfinity ? grad : where(x < b, grad, 0.0);
      return where(b == kInfinity ? x > a : (x > a) * (x < b), grad, 0.0);
    case UnaryOp::hardtanh:
      return where((x > a) * (x < b), grad, 0.0);
    case UnaryOp::hardsigmoid:
      return where((x > -3.0) * (x < 3.0), grad * static_cast<double>(1.0F / 6.0F), 0.0);  // as the functor's
    case UnaryOp::hardswish:
      return where(x <= -3.0, 0.0, where(x >= 3.0, grad, grad * (x / 3.0 + 0.5)));
    case UnaryOp::leaky_relu:
      return where(x > 0.0, grad, a * grad);
    // Where they rise along a line, exp() is kept from overflowing, since 0 times infinity would be a gradient.
    case UnaryOp::elu:
      return where(x <= 0.0, grad * (a * b * exp(clamp(x, std::nullopt, 0.0))), b * grad);
    case UnaryOp::celu:
      return where(x <= 0.0, grad * exp(clamp(x, std::nullopt, 0.0) / a), grad);
    case UnaryOp::frac:
      return grad;
    case UnaryOp::nan_to_num:
      return where(isfinite(x), grad, 0.0);
    case UnaryOp::softplus:
      return where(a * x > b, grad, grad * sigmoid(a * x));
    default:
      return {};
  }
}

}  // namespace

Tensor recorded_unary_gradient(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved) {
  if (op == UnaryOp::pow && params.a == 0.0) return zeros_like(grad);
  Tensor slope = slope_of_result(op, saved);
  if (!slope.defined()) slope = slope_of_input(op, params, saved);
  if (slope.defined()) return grad * slope;
  const Tensor in_parts = gradient_in_parts(op, params, grad, saved);
  return in_parts.defined() ? flat_in(in_parts, saved) : in_parts;
}

}  // namespace lockstep
