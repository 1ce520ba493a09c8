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

}  // namespace lockstep::unary
