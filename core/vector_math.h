#pragma once

// Elementary functions that compilers can vectorise: branch-free polynomials in float. For kernels (.cpp and .cu) only.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/core/double_math.h"
#include "lockstep/core/fixed_math.h"
#include "lockstep/core/philox.h"
#if !defined(__CUDA_ARCH__)
#include "lockstep/core/vector_math_double.h"
#include "lockstep/core/vector_math_inverse.h"
#endif

// Before a loop whose iterations do not depend on each other. Never before one that sums into a variable: Clang takes
// the pragma as leave to change the order of additions.
#if defined(__clang__)
#define LOCKSTEP_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define LOCKSTEP_VECTORIZE _Pragma("GCC ivdep")
#else
#define LOCKSTEP_VECTORIZE
#endif

namespace lockstep::math {

/// Note [Vector math]
/// glibc's expf and friends are calls, and a loop with a call does not vectorise. The float versions here are straight
/// lines of fused multiply-adds, spelled out, and selects; their coefficients are Chebyshev fits made for this file.
/// Measured against float64 over the whole range: exp 1.07 ulp, log 0.75, tanh 1.33, sigmoid 2.33, erf 1.16,
/// normal 6.0, atan 1.9, asin 1.4, acos 1.1 (tests/ops/unary_test.cpp holds the bounds). NaN and infinities behave as
/// in C, except that results below the normal range may be flushed by sigmoid. The double versions are those of
/// double_math.h, never the C library's; on a GPU all of them call CUDA's.

#if defined(__CUDA_ARCH__)
LOCKSTEP_HOST_DEVICE inline double exp(double x) {
  return std::exp(x);
}
LOCKSTEP_HOST_DEVICE inline double log(double x) {
  return std::log(x);
}
LOCKSTEP_HOST_DEVICE inline double log1p(double x) {
  return std::log1p(x);
}
LOCKSTEP_HOST_DEVICE inline double tanh(double x) {
  return std::tanh(x);
}
LOCKSTEP_HOST_DEVICE inline double erf(double x) {
  return std::erf(x);
}
LOCKSTEP_HOST_DEVICE inline double sin(double x) {
  return std::sin(x);
}
LOCKSTEP_HOST_DEVICE inline float sin(float x) {
  return std::sin(x);
}
LOCKSTEP_HOST_DEVICE inline double cos(double x) {
  return std::cos(x);
}
LOCKSTEP_HOST_DEVICE inline float cos(float x) {
  return std::cos(x);
}
LOCKSTEP_HOST_DEVICE inline double pow(double x, double y) {
  return std::pow(x, y);
}
LOCKSTEP_HOST_DEVICE inline float pow(float x, float y) {
  return std::pow(x, y);
}
LOCKSTEP_HOST_DEVICE inline double tan(double x) {
  return std::tan(x);
}
LOCKSTEP_HOST_DEVICE inline float tan(float x) {
  return std::tan(x);
}
LOCKSTEP_HOST_DEVICE inline double sinh(double x) {
  return std::sinh(x);
}
LOCKSTEP_HOST_DEVICE inline float sinh(float x) {
  return std::sinh(x);
}
LOCKSTEP_HOST_DEVICE inline double cosh(double x) {
  return std::cosh(x);
}
LOCKSTEP_HOST_DEVICE inline float cosh(float x) {
  return std::cosh(x);
}
LOCKSTEP_HOST_DEVICE inline double log2(double x) {
  return std::log2(x);
}
LOCKSTEP_HOST_DEVICE inline float log2(float x) {
  return std::log2(x);
}
LOCKSTEP_HOST_DEVICE inline double log10(double x) {
  return std::log10(x);
}
LOCKSTEP_HOST_DEVICE inline float log10(float x) {
  return std::log10(x);
}
LOCKSTEP_HOST_DEVICE inline double atan(double x) {
  return std::atan(x);
}
LOCKSTEP_HOST_DEVICE inline float atan(float x) {
  return std::atan(x);
}
LOCKSTEP_HOST_DEVICE inline double asin(double x) {
  return std::asin(x);
}
LOCKSTEP_HOST_DEVICE inline float asin(float x) {
  return std::asin(x);
}
LOCKSTEP_HOST_DEVICE inline double acos(double x) {
  return std::acos(x);
}
LOCKSTEP_HOST_DEVICE inline float acos(float x) {
  return std::acos(x);
}
LOCKSTEP_HOST_DEVICE inline double expm1(double x) {
  return std::expm1(x);
}
LOCKSTEP_HOST_DEVICE inline float expm1(float x) {
  return std::expm1(x);
}
LOCKSTEP_HOST_DEVICE inline double log1p_any(double x) {
  return std::log1p(x);
}
LOCKSTEP_HOST_DEVICE inline float log1p_any(float x) {
  return std::log1p(x);
}
#else
inline double exp(double x) {
  return portable_exp(x);
}
inline double log(double x) {
  return portable_log(x);
}
inline double log1p(double x) {
  return portable_log1p(x);
}
inline double tanh(double x) {
  return portable_tanh(x);
}
inline double erf(double x) {
  return portable_erf(x);
}
inline double sin(double x) {
  return portable_sin(x);
}
inline double cos(double x) {
  return portable_cos(x);
}
inline double pow(double x, double y) {
  return portable_pow(x, y);
}
inline double tan(double x) {
  return portable_tan(x);
}
inline double sinh(double x) {
  return portable_sinh(x);
}
inline float sinh(float x) {
  return static_cast<float>(portable_sinh(static_cast<double>(x)));
}
inline double cosh(double x) {
  return portable_cosh(x);
}
inline float cosh(float x) {
  return static_cast<float>(portable_cosh(static_cast<double>(x)));
}
inline double log2(double x) {
  return portable_log2(x);
}
inline double log10(double x) {
  return portable_log10(x);
}
inline double atan(double x) {
  return portable_atan(x);
}
inline double asin(double x) {
  return portable_asin(x);
}
inline double acos(double x) {
  return portable_acos(x);
}
inline double expm1(double x) {
  return portable_expm1(x);
}
/// log(1 + x) for any x; log1p(float) is for [0, 1].
inline double log1p_any(double x) {
  return portable_log1p(x);
}
#endif
/// exp(x) where x is at most 0, or NaN.
LOCKSTEP_HOST_DEVICE inline double exp_to_one(double x) {
  return math::exp(x);
}
/// exp(-|x|)
LOCKSTEP_HOST_DEVICE inline double exp_below(double x) {
  return math::exp(-std::fabs(x));
}
/// 1 / (1 + exp(-x)), without overflow.
LOCKSTEP_HOST_DEVICE inline double sigmoid(double x) {
  const double e = exp_below(x);
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}

/// The standard normal distribution at x: its cumulative function, and exp(-x^2 / 2), sqrt(2 pi) times its density.
template <typename T>
struct Normal {
  T cumulative, gauss;
};

LOCKSTEP_HOST_DEVICE inline Normal<double> normal(double x) {
  return {std::fma(0.5, erf(x * 0.7071067811865476), 0.5), exp(-0.5 * x * x)};
}

#if defined(__CUDA_ARCH__)

__device__ inline float exp(float x) {
  return ::expf(x);
}
__device__ inline float exp_to_one(float x) {
  return ::expf(x);
}
__device__ inline float exp_below(float x) {
  return ::expf(-::fabsf(x));
}
__device__ inline float log(float x) {
  return ::logf(x);
}
__device__ inline float log1p(float x) {
  return ::log1pf(x);
}
__device__ inline float tanh(float x) {
  return ::tanhf(x);
}
__device__ inline float erf(float x) {
  return ::erff(x);
}
__device__ inline Normal<float> normal(float x) {
  return {0.5f * ::erfcf(-0.70710678f * x), ::expf(-0.5f * x * x)};
}
__device__ inline float sigmoid(float x) {
  const float e = ::expf(-::fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

#else

namespace detail {
using fixed::kRound;
using fixed::power_of_two;
}  // namespace detail

[[gnu::always_inline]] inline float exp(float x) {
  return fixed::exp(x);
}
[[gnu::always_inline]] inline float exp_to_one(float x) {
  return fixed::exp_to_one(x);
}
[[gnu::always_inline]] inline float log(float x) {
  return fixed::log(x);
}

/// log(1 + x) for x in [0, 1] only, which is what soft maxima of two need; within 2 ulp.
[[gnu::always_inline]] inline float log1p(float x) {
  // 2 atanh(s) = log((1 + s) / (1 - s)) with s = x / (2 + x) <= 1/3: the series in s^2 needs eight terms.
  const float s = x / (2.0f + x);
  const float z = s * s;
  float p = 1.0f / 15;
  p = std::fma(p, z, 1.0f / 13);
  p = std::fma(p, z, 1.0f / 11);
  p = std::fma(p, z, 1.0f / 9);
  p = std::fma(p, z, 1.0f / 7);
  p = std::fma(p, z, 1.0f / 5);
  p = std::fma(p, z, 1.0f / 3);
  p = p * z;
  return 2.0f * std::fma(s, p, s);
}

/// exp(x) - 1, within 2 ulp.
[[gnu::always_inline]] inline float expm1(float x) {
  // As exp(): 2^n (1 + p) - 1 = 2^n p + (2^n - 1), whose last part is exact for small n.
  float low = x > 80.0f ? 80.0f : x;
  low = low < -30.0f ? -30.0f : low;
  const float shifted = std::fma(low, fixed::kLog2E, detail::kRound);
  const std::int32_t n =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(detail::kRound));
  const float whole = shifted - detail::kRound;
  const float r = std::fma(whole, -fixed::kLn2Low, std::fma(whole, -fixed::kLn2High, low));
  float p = fixed::kExp6;
  p = std::fma(p, r, fixed::kExp5);
  p = std::fma(p, r, fixed::kExp4);
  p = std::fma(p, r, fixed::kExp3);
  p = std::fma(p, r, fixed::kExp2);
  p = std::fma(p * r, r, r);
  const float scale = detail::power_of_two(n);
  const float y = std::fma(scale, p, scale - 1.0f);
  const float finite = x > 80.0f ? exp(x) : y;
  return x == 0.0f ? x : finite;
}

/// log(1 + x) for any x, within 2 ulp: the logarithm of the rounded sum, and what rounding lost over the sum.
[[gnu::always_inline]] inline float log1p_any(float x) {
  const float u = 1.0f + x;
  const float y = log(u);
  const float lost = x - (u - 1.0f);
  const bool plain = (u > 0.0f) & (u < std::numeric_limits<float>::infinity());
  return x == 0.0f ? x : (plain ? y + lost / u : y);
}

[[gnu::always_inline]] inline float tanh(float x) {
  const float a = std::fabs(x);
  const float z = x * x;
  float p = -0.00609671416591f;
  p = std::fma(p, z, 0.0209971789991f);
  p = std::fma(p, z, -0.0538509095785f);
  p = std::fma(p, z, 0.13332769737f);
  p = std::fma(p, z, -0.333333289441f);
  const float small = std::fma(x, z * p, x);
  const float large = 1.0f - 2.0f / (fixed::exp_from_one(2.0f * a) + 1.0f);
  return std::copysign(a < 0.625f ? small : large, x);
}

[[gnu::always_inline]] inline float exp_below(float x) {
  return fixed::exp_to_one(-std::fabs(x));
}

[[gnu::always_inline]] inline float sigmoid(float x) {
  const float e = exp_below(x);
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

[[gnu::always_inline]] inline float erf(float x) {
  const float a = std::fabs(x);
  const float z = x * x;
  float p = 7.87587506269e-5f;
  p = std::fma(p, z, -0.000801686428717f);
  p = std::fma(p, z, 0.00518908742343f);
  p = std::fma(p, z, -0.0268542120106f);
  p = std::fma(p, z, 0.112835947152f);
  p = std::fma(p, z, -0.376126266667f);
  p = std::fma(p, z, 0.12837916585f);   // 2 / sqrt(pi) - 1
  const float t = a > 4.0f ? 4.0f : a;  // erf(4) rounds to 1
  float q = 1.63715141459e-6f;          // log(erfc(t))
  q = std::fma(q, t, -4.60580426892e-5f);
  q = std::fma(q, t, 0.000596805625661f);
  q = std::fma(q, t, -0.00475959629327f);
  q = std::fma(q, t, 0.0264211360057f);
  q = std::fma(q, t, -0.110080082949f);
  q = std::fma(q, t, -0.631826051559f);
  q = std::fma(q, t, -1.13023343484f);
  q = std::fma(q, t, 0.000320138049678f);
  const float large = std::copysign(1.0f - exp_to_one(q), x);
  return a < 1.0f ? std::fma(x, p, x) : (x == x ? large : x);
}

/// For t = |x| the cumulative function at -t over exp(-t^2 / 2), Mills' ratio, is smooth: s P(s) with s = 1 / (1 + 0.27
/// t) and a polynomial fitted to it within 3e-8. So one exponential serves both, and small values keep their digits.
[[gnu::always_inline]] inline Normal<float> normal(float x) {
  const float a = std::fabs(x);
  const float t = a > 16.0f ? 16.0f : a;  // both are 0 there; NaN passes through
  const float square = t * t, lost = std::fma(t, t, -square);
  const float rounded = exp_to_one(-0.5f * square), gauss = std::fma(rounded, -0.5f * lost, rounded);
  const float s = 1.0f / std::fma(t, 0.27f, 1.0f);
  float p = 0.029038639739156f;
  p = std::fma(p, s, -0.126874879002571f);
  p = std::fma(p, s, 0.170617923140526f);
  p = std::fma(p, s, -0.070198252797127f);
  p = std::fma(p, s, 0.108535781502724f);
  p = std::fma(p, s, 0.071733713150024f);
  p = std::fma(p, s, 0.101895250380039f);
  p = std::fma(p, s, 0.107530422508717f);
  p = std::fma(p, s, 0.107721425592899f);
  const float below = gauss * s * p;
  return {x < 0.0f ? below : 1.0f - below, gauss};
}

#endif

}  // namespace lockstep::math
