#pragma once

// Functors of the elementary functions and of erf. For kernels (.cpp and .cu) only; see unary_functor.h.

#include <cmath>

#include "lockstep/autograd/ops/unary/unary_functor.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::unary {

template <typename T>
struct Exp : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::exp(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * y; }
};

template <typename T>
struct Expm1 : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::expm1(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * (y + T(1)); }
};

template <typename T>
struct Log : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::log(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / x; }
};

template <typename T>
struct Log1p : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::log1p_any(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / (x + T(1)); }
};

template <typename T>
struct Log2 : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::log2(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / (x * T(0.6931471805599453)); }
};

template <typename T>
struct Log10 : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::log10(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / (x * T(2.302585092994046)); }
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

template <typename T>
struct Tan : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::tan(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * std::fma(y, y, T(1)); }
};

template <typename T>
struct Asin : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::asin(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / std::sqrt((T(1) - x) * (T(1) + x)); }
};

template <typename T>
struct Acos : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::acos(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return -grad / std::sqrt((T(1) - x) * (T(1) + x)); }
};

template <typename T>
struct Atan : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::atan(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / std::fma(x, x, T(1)); }
};

template <typename T>
struct Sinh : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::sinh(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * math::cosh(x); }
};

template <typename T>
struct Cosh : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::cosh(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * math::sinh(x); }
};

template <typename T>
struct Erf : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::erf(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * (T(1.1283791670955126) * math::exp(-x * x)); }
};

template <typename T>
struct Asinh : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  /// log(|x| + sqrt(x^2 + 1)); beyond 1e4 log(2 |x|), which differs by less than a rounding of float.
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T size = std::fabs(x);
    constexpr T kFar = sizeof(T) == 4 ? T(1e4) : T(1e9);
    const T far = math::log(size) + T(0.69314718055994530942);
    const T near = math::log1p_any(size + size * size / (T(1) + std::sqrt(size * size + T(1))));
    return std::copysign(size > kFar ? far : near, x);
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / std::sqrt(x * x + T(1)); }
};

template <typename T>
struct Acosh : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    constexpr T kFar = sizeof(T) == 4 ? T(1e4) : T(1e9);
    if (x < T(1)) return static_cast<T>(NAN);
    const T beyond = x - T(1);
    return x > kFar ? math::log(x) + T(0.69314718055994530942)
                    : math::log1p_any(beyond + std::sqrt(beyond * (x + T(1))));
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / (std::sqrt(x - T(1)) * std::sqrt(x + T(1))); }
};

template <typename T>
struct Atanh : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T size = std::fabs(x);
    return std::copysign(T(0.5) * math::log1p_any((size + size) / (T(1) - size)), x);
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / ((T(1) - x) * (T(1) + x)); }
};

}  // namespace lockstep::unary
