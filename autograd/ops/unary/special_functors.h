#pragma once

// Functors of the gamma function's logarithm, its slopes, and the inverse of erf, all computed in double. For kernels
// (.cpp and .cu) only; see unary_functor.h.

#include <cmath>

#include "lockstep/autograd/ops/unary/unary_functor.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::unary {

inline constexpr double kPi = 3.14159265358979323846;
/// From here on the asymptotic series below are exact to double's digits.
inline constexpr double kSeriesFrom = 10.0;

/// log(gamma(x)) for finite x > 0: Stirling's series where x is large, and gamma(x + 1) = x gamma(x) before, without a
/// branch. `log` is that of what is positive and finite.
template <typename Log>
[[gnu::always_inline]] LOCKSTEP_HOST_DEVICE inline double log_gamma_of_positive(double x, Log log) {
  double factor = 1.0;
  for (int i = 0; i < static_cast<int>(kSeriesFrom); ++i) {
    const bool small = x < kSeriesFrom;
    factor *= small ? x : 1.0;
    x += small ? 1.0 : 0.0;
  }
  const double r = 1.0 / x, s = r * r;
  // B_2k / (2k (2k - 1) x^(2k - 1))
  const double series =
      r * (1.0 / 12 - s * (1.0 / 360 - s * (1.0 / 1260 - s * (1.0 / 1680 - s * (1.0 / 1188 - s * (691.0 / 360360))))));
  return (x - 0.5) * log(x) - x + 0.91893853320467274178 + series - log(factor);
}

/// Distance of x to the nearest whole number, with its sign; sin(pi x) and tan(pi x) have their period there.
LOCKSTEP_HOST_DEVICE inline double from_whole(double x) {
  return x - std::nearbyint(x);
}

struct Logarithm {
  LOCKSTEP_HOST_DEVICE double operator()(double x) const { return math::log(x); }
};

LOCKSTEP_HOST_DEVICE inline double log_gamma(double x) {
  constexpr double kInfinity = static_cast<double>(INFINITY);
  if (x != x) return x;
  if (x == kInfinity || x == -kInfinity) return kInfinity;
  if (x == 1.0 || x == 2.0) return 0.0;
  if (x > 0.0) return log_gamma_of_positive(x, Logarithm());
  if (x == std::floor(x)) return kInfinity;
  return math::log(kPi / std::fabs(math::sin(kPi * from_whole(x)))) - log_gamma_of_positive(1.0 - x, Logarithm());
}

LOCKSTEP_HOST_DEVICE inline double digamma_of_positive(double x) {
  double sum = 0.0;
  while (x < kSeriesFrom) {
    sum -= 1.0 / x;
    x += 1.0;
  }
  const double r = 1.0 / x, s = r * r;
  const double series =
      s *
      (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (1.0 / 240 - s * (1.0 / 132 - s * (691.0 / 32760 - s / 12))))));
  return sum + math::log(x) - 0.5 * r - series;
}

/// The slope of log_gamma(): NaN at negative whole numbers, -infinity (infinity) at 0 (-0), as PyTorch's.
LOCKSTEP_HOST_DEVICE inline double digamma(double x) {
  constexpr double kInfinity = static_cast<double>(INFINITY);
  if (x == 0.0) return std::copysign(kInfinity, -x);
  if (x == kInfinity || x != x) return x;
  if (x > 0.0) return digamma_of_positive(x);
  if (x == std::floor(x)) return static_cast<double>(NAN);
  return digamma_of_positive(1.0 - x) - kPi / math::tan(kPi * from_whole(x));
}

/// The slope of digamma().
LOCKSTEP_HOST_DEVICE inline double trigamma(double x) {
  double sign = 1.0, sum = 0.0;
  if (x == -static_cast<double>(INFINITY)) return static_cast<double>(NAN);
  if (x < 0.5) {
    const double sine = math::sin(kPi * from_whole(x));
    sum = -(kPi * kPi) / (sine * sine);
    sign = -1.0;
    x = 1.0 - x;
  }
  while (x < kSeriesFrom) {
    sum += 1.0 / (x * x);
    x += 1.0;
  }
  const double r = 1.0 / x, s = r * r;
  const double series =
      r * (1.0 + r * 0.5 + s * (1.0 / 6 - s * (1.0 / 30 - s * (1.0 / 42 - s * (1.0 / 30 - s * (5.0 / 66))))));
  return sign * (sum + series);
}

/// By Newton's steps from Winitzki's approximation (2008), which is within 0.4 %.
LOCKSTEP_HOST_DEVICE inline double erf_inverse(double y) {
  const double size = std::fabs(y);
  if (!(size < 1.0)) return size == 1.0 ? std::copysign(static_cast<double>(INFINITY), y) : static_cast<double>(NAN);
  if (size == 0.0) return y;
  constexpr double kA = 0.147;
  const double l = math::log1p_any(-size * size), m = 2.0 / (kPi * kA) + 0.5 * l;
  double x = std::sqrt(std::sqrt(m * m - l / kA) - m);
  for (int i = 0; i < 3; ++i) {
    const double step = (math::erf(x) - size) / (1.1283791670955126 * math::exp(-x * x));
    x -= step / std::fma(x, step, 1.0);
  }
  return std::copysign(x, y);
}

/// The same for float: the polynomials of Giles, "Approximating the erfinv function" (2010), within 4 units in the last
/// place.
LOCKSTEP_HOST_DEVICE inline float erf_inverse(float y) {
  const float w = -math::log((1.0f - y) * (1.0f + y));
  const float near = w - 2.5f, far = std::sqrt(w) - 3.0f;
  float p = 2.81022636e-08f, q = -0.000200214257f;
  p = 3.43273939e-07f + p * near, q = 0.000100950558f + q * far;
  p = -3.5233877e-06f + p * near, q = 0.00134934322f + q * far;
  p = -4.39150654e-06f + p * near, q = -0.00367342844f + q * far;
  p = 0.00021858087f + p * near, q = 0.00573950773f + q * far;
  p = -0.00125372503f + p * near, q = -0.0076224613f + q * far;
  p = -0.00417768164f + p * near, q = 0.00943887047f + q * far;
  p = 0.246640727f + p * near, q = 1.00167406f + q * far;
  p = 1.50140941f + p * near, q = 2.83297682f + q * far;
  const float value = (w < 5.0f ? p : q) * y;
  return std::fabs(y) == 1.0f ? std::copysign(static_cast<float>(INFINITY), y) : value;
}

template <typename T>
struct LogGamma : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return static_cast<T>(log_gamma(static_cast<double>(x))); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return static_cast<T>(static_cast<double>(grad) * digamma(static_cast<double>(x)));
  }
};

template <typename T>
struct Digamma : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return static_cast<T>(digamma(static_cast<double>(x))); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const {
    return static_cast<T>(static_cast<double>(grad) * trigamma(static_cast<double>(x)));
  }
};

template <typename T>
struct ErfInv : FunctorOfOutput {
  using FunctorOfOutput::FunctorOfOutput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return erf_inverse(x); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T y) const { return grad * T(0.88622692545275801365) * math::exp(y * y); }
};

/// 1 - erf(x). From 1 to 6 exp(x^2) erfc(x) (1 + 2 x) is the polynomial of core/double_math_lines.h in (x - 3) / (x +
/// 3), beyond it Laplace's continued fraction.
LOCKSTEP_HOST_DEVICE inline double erf_complement(double x) {
  if (!(x >= 1.0)) return 1.0 - math::erf(x);
  if (x > 27.3) return 0.0;
  // x^2 = near^2 + rest, of which the first term is exact.
  const double near = static_cast<double>(static_cast<float>(x)), rest = (x - near) * (x + near);
  const double gauss = math::exp(-near * near) * math::exp(-rest);
  if (x < 6.0) {
    const double u = (x - 3.0) / (x + 3.0);
    double p = 0x1.32af670bbdb95p-19;
    p = std::fma(p, u, -0x1.192982fbf6129p-20);
    p = std::fma(p, u, -0x1.4aeb5d3c995fcp-16);
    p = std::fma(p, u, 0x1.56fea76f8e4dbp-18);
    p = std::fma(p, u, 0x1.06405c01b1a34p-13);
    p = std::fma(p, u, -0x1.b9305c3ca50ecp-14);
    p = std::fma(p, u, -0x1.98daefef091c2p-11);
    p = std::fma(p, u, 0x1.ef1c0567e5b75p-10);
    p = std::fma(p, u, 0x1.4b884db29eaeap-9);
    p = std::fma(p, u, -0x1.8574c4279d471p-6);
    p = std::fma(p, u, 0x1.17ca2877f10ebp-4);
    p = std::fma(p, u, -0x1.e88b803a23eedp-4);
    p = std::fma(p, u, 0x1.098366a5b48dep-3);
    p = std::fma(p, u, -0x1.85a15c58aaf57p-5);
    p = std::fma(p, u, -0x1.15c084bb9e8f6p-3);
    p = std::fma(p, u, 0x1.40c522d7e4987p+0);
    return gauss * p / (1.0 + 2.0 * x);
  }
  double fraction = x;
  for (int k = 16; k > 0; --k) fraction = x + 0.5 * k / fraction;
  return gauss / (1.7724538509055160 * fraction);
}

template <typename T>
struct Erfc : FunctorOfInput {
  using FunctorOfInput::FunctorOfInput;
  LOCKSTEP_HOST_DEVICE T value(T x) const { return static_cast<T>(erf_complement(static_cast<double>(x))); }
  LOCKSTEP_HOST_DEVICE T gradient(T grad, T x) const { return grad * (T(-1.1283791670955126) * math::exp(-x * x)); }
};

}  // namespace lockstep::unary
