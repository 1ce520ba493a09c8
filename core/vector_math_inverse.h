#pragma once

// Inverse trigonometric functions of float, in straight lines that compilers can vectorise. Included by vector_math.h
// alone.

#include <cmath>

#include "lockstep/core/fixed_math.h"

namespace lockstep::math {
namespace detail {
inline constexpr float kHalfPi = 1.57079632679489661923f, kHalfPiLow = -4.37113883e-8f;  // pi / 2 is their sum

/// asin(|x|) up to kLarge; above, (pi / 2 - asin(|x|)) / 2, which is the arc sine of sqrt((1 - |x|) / 2), and below 1/2
/// there, so that twice its error is not much. By a Chebyshev fit in the square, made for this file.
inline constexpr float kLarge = 0.55f;
[[gnu::always_inline]] inline float small_arc(float x, bool large) {
  const float a = std::fabs(x);
  const float z = large ? 0.5f * (1.0f - a) : a * a;
  const float s = large ? std::sqrt(z) : a;
  float p = 0.04533162177f;
  p = std::fma(p, z, 0.008542173216f);
  p = std::fma(p, z, 0.03345600436f);
  p = std::fma(p, z, 0.04430893839f);
  p = std::fma(p, z, 0.07501641494f);
  p = std::fma(p, z, 0.1666664f);
  return std::fma(s * z, p, s);
}
}  // namespace detail

/// Within 2 ulp.
[[gnu::always_inline]] inline float atan(float x) {
  const float a = std::fabs(x);
  const float angle = fixed::atan_to_one(a > 1.0f ? 1.0f / a : a);
  return std::copysign(a > 1.0f ? detail::kHalfPi - (angle - detail::kHalfPiLow) : angle, x);
}

/// Within 2 ulp.
[[gnu::always_inline]] inline float asin(float x) {
  const bool large = std::fabs(x) > detail::kLarge;
  const float y = detail::small_arc(x, large);
  return std::copysign(large ? detail::kHalfPi - (2.0f * y - detail::kHalfPiLow) : y, x);
}

/// Within 2 ulp.
[[gnu::always_inline]] inline float acos(float x) {
  const bool large = std::fabs(x) > detail::kLarge;
  const float y = detail::small_arc(x, large);
  const float end = x > 0.0f ? 2.0f * y : 2.0f * detail::kHalfPi - (2.0f * y - 2.0f * detail::kHalfPiLow);
  return large ? end : detail::kHalfPi - (std::copysign(y, x) - detail::kHalfPiLow);
}

}  // namespace lockstep::math
