#pragma once

// Functors of arithmetic: signs, limits, whole numbers, powers and roots. For kernels (.cpp and .cu) only; see
// unary_functor.h.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/autograd/ops/unary/unary_functor.h"
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
struct Sign : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return T(x > T(0)) - T(x < T(0)); }
  LOCKSTEP_HOST_DEVICE T gradient(T, T) const { return T(0); }
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
  /// 0 at a bound, as in PyTorch; a bound that is infinite is none.
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const bool above = (x > low) | (low == static_cast<T>(-INFINITY)),
               below = (x < high) | (high == static_cast<T>(INFINITY));
    return above & below ? grad : T(0);
  }
};

template <typename T>
struct Floor : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x;
    } else {
      return std::floor(x);
    }
  }
  LOCKSTEP_HOST_DEVICE T gradient(T, T) const { return T(0); }
};

template <typename T>
struct Ceil : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x;
    } else {
      return std::ceil(x);
    }
  }
  LOCKSTEP_HOST_DEVICE T gradient(T, T) const { return T(0); }
};

template <typename T>
struct Round : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x;
    } else {
      return std::nearbyint(x);
    }
  }
  LOCKSTEP_HOST_DEVICE T gradient(T, T) const { return T(0); }
};

template <typename T>
struct Trunc : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x;
    } else {
      return std::trunc(x);
    }
  }
  LOCKSTEP_HOST_DEVICE T gradient(T, T) const { return T(0); }
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
struct Frac : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x - std::trunc(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T) const { return grad; }
};

template <typename T>
struct NanToNum {
  static constexpr Saves kSaves = Saves::input;
  T nan, above, below;
  explicit NanToNum(UnaryParams params)
      : nan(static_cast<T>(params.a)), above(static_cast<T>(params.b)), below(static_cast<T>(params.c)) {}
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    constexpr T kInfinity = static_cast<T>(INFINITY);
    const T finite = x == kInfinity ? above : (x == -kInfinity ? below : x);
    return x != x ? nan : finite;
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return x - x == T(0) ? grad : T(0); }
};

}  // namespace lockstep::unary
