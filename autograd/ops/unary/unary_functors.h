#pragma once

// The functions of the unary family and their derivatives, shared by every device. For kernels (.cpp and .cu) only.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/autograd/ops/unary/unary_more_functors.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::unary {

template <typename T>
struct Neg : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(std::uint64_t{0} - static_cast<std::uint64_t>(x));
    } else {
      return -x;
    }
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T) const { return value(grad); }
};

template <typename T>
struct Abs : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x < 0 ? static_cast<T>(std::uint64_t{0} - static_cast<std::uint64_t>(x)) : x;
    } else {
      return std::fabs(x);
    }
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * (T(x > T(0)) - T(x < T(0))); }
};

template <typename T>
struct Relu : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x < T(0) ? T(0) : x; }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return y <= T(0) ? T(0) : grad; }
};

template <typename T>
struct Clamp {
  static constexpr Saves kSaves = Saves::input;
  T low, high;
  explicit Clamp(UnaryParams params) : low(bound(params.a)), high(bound(params.b)) {}
  static T bound(double value) {
    if constexpr (std::is_integral_v<T>) {
      if (value <= -0x1p63) return std::numeric_limits<T>::lowest();
      if (value >= 0x1p63) return std::numeric_limits<T>::max();
    }
    return static_cast<T>(value);
  }
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T raised = (x < low) | (low != low) ? low : x;  // a NaN among the three is the result
    return (raised > high) | (high != high) ? high : raised;
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return (x >= low) & (x <= high) ? grad : T(0); }
};

template <typename T>
struct Exp : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::exp(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * y; }
};

template <typename T>
struct Log : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::log(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / x; }
};

template <typename T>
struct Sqrt : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return std::sqrt(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad / (y + y); }
};

template <typename T>
struct Rsqrt : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return T(1) / std::sqrt(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return T(-0.5) * grad * y * y * y; }
};

template <typename T>
struct Reciprocal : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return T(1) / x; }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return -grad * y * y; }
};

template <typename T>
struct Square : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x * x; }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * (x + x); }
};

template <typename T>
struct Cube : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x * x * x; }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * (T(3) * (x * x)); }
};

template <typename T>
struct Pow {
  static constexpr Saves kSaves = Saves::input;
  T exponent;
  explicit Pow(UnaryParams params) : exponent(static_cast<T>(params.a)) {}
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::pow(x, exponent); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return exponent == T(0) ? T(0) : grad * (exponent * math::pow(x, exponent - T(1)));
  }
};

template <typename T>
struct Tanh : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::tanh(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * std::fma(-y, y, T(1)); }
};

template <typename T>
struct Sigmoid : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::sigmoid(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * (y * (T(1) - y)); }
};

template <typename T>
struct LeakyRelu {
  static constexpr Saves kSaves = Saves::input;
  T slope;
  explicit LeakyRelu(UnaryParams params) : slope(static_cast<T>(params.a)) {}
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x > T(0) ? x : slope * x; }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return x > T(0) ? grad : slope * grad; }
};

template <typename T>
struct Gelu : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE static T cumulative(T x) {
    return std::fma(T(0.5), math::erf(x * T(0.7071067811865476)), T(0.5));
  }
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x * cumulative(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const T density = T(0.3989422804014327) * math::exp(T(-0.5) * x * x);
    return grad * std::fma(x, density, cumulative(x));
  }
};

template <typename T>
struct GeluTanh : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE static T inner(T x) { return T(0.7978845608028654) * std::fma(T(0.044715) * x * x, x, x); }
  LOCKSTEP_HOST_DEVICE T value(T x) const { return T(0.5) * x * (T(1) + math::tanh(inner(x))); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const T t = math::tanh(inner(x));
    const T slope = T(0.7978845608028654) * std::fma(T(3 * 0.044715) * x, x, T(1));
    return grad * std::fma(T(0.5) * x * std::fma(-t, t, T(1)), slope, std::fma(T(0.5), t, T(0.5)));
  }
};

template <typename T>
struct Silu : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x * math::sigmoid(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const T s = math::sigmoid(x);
    return grad * (s * std::fma(x, T(1) - s, T(1)));
  }
};

template <typename T>
struct Sin : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::sin(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * math::cos(x); }
};

template <typename T>
struct Cos : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::cos(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return -grad * math::sin(x); }
};

/// True for the operations that keep integers.
constexpr bool takes_integers(UnaryOp op) {
  return op <= UnaryOp::clamp;
}

/// Calls f.operator()<Functor>() with the functor of `op` for values of type T (float, double; std::int64_t only if
/// takes_integers(op)).
template <typename T, typename F>
void visit(UnaryOp op, F&& f) {
  switch (op) {
#define LOCKSTEP_UNARY_OP(name, Functor)                                                                        \
  case UnaryOp::name:                                                                                           \
    if constexpr (!std::is_integral_v<T> || takes_integers(UnaryOp::name)) f.template operator()<Functor<T>>(); \
    return;
    LOCKSTEP_UNARY_OPS(LOCKSTEP_UNARY_OP)
#undef LOCKSTEP_UNARY_OP
  }
}

}  // namespace lockstep::unary
