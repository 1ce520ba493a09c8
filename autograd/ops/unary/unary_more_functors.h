#pragma once

// More functors of the unary family; see unary_functors.h, which includes this.

#include <cmath>
#include <type_traits>

#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::unary {

// Each functor is made from UnaryParams for values of type T, and has value(x) and gradient(grad, saved), where kSaves
// tells whether `saved` is the input or the output.
enum class Saves { input, output };

struct FunctorOfInput {
  static constexpr Saves kSaves = Saves::input;
  explicit FunctorOfInput(UnaryParams) {}
};
struct FunctorOfOutput {
  static constexpr Saves kSaves = Saves::output;
  explicit FunctorOfOutput(UnaryParams) {}
};

template <typename T>
struct Sign : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return T(x > T(0)) - T(x < T(0)); }
  LOCKSTEP_HOST_DEVICE T gradient(T, T) const { return T(0); }
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
struct Hardtanh {
  static constexpr Saves kSaves = Saves::input;
  T low, high;
  explicit Hardtanh(UnaryParams params) : low(static_cast<T>(params.a)), high(static_cast<T>(params.b)) {}
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x < low ? low : (x > high ? high : x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return ((x > low) & (x < high)) ? grad : T(0); }
};

template <typename T>
struct Elu {
  static constexpr Saves kSaves = Saves::input;
  T alpha, scale;
  explicit Elu(UnaryParams params) : alpha(static_cast<T>(params.a)), scale(static_cast<T>(params.b)) {}
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x > T(0) ? scale * x : scale * alpha * math::expm1(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return x <= T(0) ? grad * (scale * alpha * math::exp(x)) : grad * scale;
  }
};

template <typename T>
struct Celu {
  static constexpr Saves kSaves = Saves::input;
  T alpha;
  explicit Celu(UnaryParams params) : alpha(static_cast<T>(params.a)) {}
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x > T(0) ? x : alpha * math::expm1(x / alpha); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return x <= T(0) ? grad * math::exp(x / alpha) : grad; }
};

template <typename T>
struct Softplus {
  static constexpr Saves kSaves = Saves::input;
  T beta, threshold;
  explicit Softplus(UnaryParams params) : beta(static_cast<T>(params.a)), threshold(static_cast<T>(params.b)) {}
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T z = beta * x;
    const T soft = ((z > T(0) ? z : T(0)) + math::log1p(math::exp(-std::fabs(z)))) / beta;
    return z > threshold ? x : soft;
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return beta * x > threshold ? grad : grad * math::sigmoid(beta * x);
  }
};

template <typename T>
struct LogSigmoid : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return (x < T(0) ? x : T(0)) - math::log1p(math::exp(-std::fabs(x))); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * math::sigmoid(-x); }
};

template <typename T>
struct Softsign : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x / (T(1) + std::fabs(x)); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const T root = T(1) / (T(1) + std::fabs(x));
    return grad * (root * root + (x - x));  // x - x: not a number at infinity, as the value
  }
};

template <typename T>
struct Hardswish : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T ramp = x + T(3) < T(0) ? T(0) : (x + T(3) > T(6) ? T(6) : x + T(3));
    return x * ramp / T(6);
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return x <= T(-3) ? T(0) : (x >= T(3) ? grad : grad * (x / T(3) + T(0.5)));
  }
};

template <typename T>
struct Hardsigmoid : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    return (x + T(3) < T(0) ? T(0) : (x + T(3) > T(6) ? T(6) : x + T(3))) / T(6);
  }
  // PyTorch's sixth is a float32 for float64 too.
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return ((x > T(-3)) & (x < T(3))) ? grad * T(1.0f / 6.0f) : T(0);
  }
};

template <typename T>
struct Mish : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T soft = (x > T(0) ? x : T(0)) + math::log1p(math::exp(-std::fabs(x)));
    return x * math::tanh(soft);
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const T t = math::tanh((x > T(0) ? x : T(0)) + math::log1p(math::exp(-std::fabs(x))));
    return grad * std::fma(x * math::sigmoid(x), std::fma(-t, t, T(1)), t);
  }
};

template <typename T>
struct Erf : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::erf(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * (T(1.1283791670955126) * math::exp(-x * x)); }
};

template <typename T>
struct Log1p : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::log1p_any(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / (x + T(1)); }
};

template <typename T>
struct Expm1 : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::expm1(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * (y + T(1)); }
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
struct Tan : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::tan(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * std::fma(y, y, T(1)); }
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
struct Atan : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return math::atan(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad / std::fma(x, x, T(1)); }
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

}  // namespace lockstep::unary
