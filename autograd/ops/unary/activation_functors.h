#pragma once

// Functors of what networks are activated by. For kernels (.cpp and .cu) only; see unary_functor.h.

#include <cmath>

#include "lockstep/autograd/ops/unary/unary_functor.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::unary {

template <typename T>
struct Relu : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x < T(0) ? T(0) : x; }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return y <= T(0) ? T(0) : grad; }
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
struct Gelu : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return x * math::normal(x).cumulative; }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const math::Normal<T> normal = math::normal(x);
    return grad * std::fma(x, T(0.3989422804014327) * normal.gauss, normal.cumulative);
  }
};

template <typename T>
struct GeluTanh : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  // (1 + tanh(z)) / 2 is sigmoid(2 z), which takes one exponential and loses nothing to cancellation.
  LOCKSTEP_HOST_DEVICE static T twice_inner(T x) { return T(1.5957691216057308) * std::fma(T(0.044715) * x * x, x, x); }
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T z = twice_inner(x), e = math::exp_below(z);
    return x * ((z >= T(0) ? T(1) : e) / (T(1) + e));
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const T z = twice_inner(x), e = math::exp_below(z), inverse = T(1) / (T(1) + e);
    const T slope = T(1.5957691216057308) * std::fma(T(3 * 0.044715) * x, x, T(1));
    return grad * std::fma(x * (e * inverse * inverse), slope, (z >= T(0) ? T(1) : e) * inverse);
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
struct Mish : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const {
    const T soft = (x > T(0) ? x : T(0)) + math::log1p(math::exp_below(x));
    return x * math::tanh(soft);
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    const T t = math::tanh((x > T(0) ? x : T(0)) + math::log1p(math::exp_below(x)));
    return grad * std::fma(x * math::sigmoid(x), std::fma(-t, t, T(1)), t);
  }
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
    const T soft = ((z > T(0) ? z : T(0)) + math::log1p(math::exp_below(z))) / beta;
    return z > threshold ? x : soft;
  }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return beta * x > threshold ? grad : grad * math::sigmoid(beta * x);
  }
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
struct LogSigmoid : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return (x < T(0) ? x : T(0)) - math::log1p(math::exp_below(x)); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * math::sigmoid(-x); }
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

}  // namespace lockstep::unary
