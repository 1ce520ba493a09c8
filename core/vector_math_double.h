#pragma once

// Functions of float that are computed in double, in straight lines that compilers can vectorise: their last steps
// would lose digits in float. Included by vector_math.h alone.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/core/double_math.h"

namespace lockstep::math {
namespace detail {
/// Adding it leaves the nearest integer in the low bits of the double.
inline constexpr double kRoundDouble = 0x1.8p52;
inline std::int64_t low_bits(double shifted) {
  return static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(shifted) - std::bit_cast<std::uint64_t>(kRoundDouble));
}

/// log2(a) for a >= 0 or NaN, to more digits than a float has; exact for powers of 2.
[[gnu::always_inline]] inline double log2_of(float a) {
  // a = m 2^k with m in [sqrt(1/2), sqrt(2)), by the series of atanh.
  constexpr double kScale = 2.8853900817779268;  // 2 / ln 2
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool subnormal = a < std::numeric_limits<float>::min();
  const float scaled = subnormal ? a * 0x1p23f : a;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled) - 0x3f3504f3u;
  const double k = static_cast<double>(static_cast<std::int32_t>(bits) >> 23) - (subnormal ? 23.0 : 0.0);
  const double f = static_cast<double>(std::bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u)) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = kScale / 17;
  p = std::fma(p, z, kScale / 15);
  p = std::fma(p, z, kScale / 13);
  p = std::fma(p, z, kScale / 11);
  p = std::fma(p, z, kScale / 9);
  p = std::fma(p, z, kScale / 7);
  p = std::fma(p, z, kScale / 5);
  p = std::fma(p, z, kScale / 3);
  p = std::fma(p, z, kScale);
  double log = std::fma(s, p, k);
  log = a < std::numeric_limits<float>::infinity() ? log : static_cast<double>(a);
  return a == 0.0f ? -kInfinity : log;
}
}  // namespace detail

/// Within 0.51 ulp, and exact for powers of 2.
[[gnu::always_inline]] inline float log2(float x) {
  const float y = static_cast<float>(detail::log2_of(std::fabs(x)));
  return x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
}
/// Within 0.51 ulp, and exact for powers of 10.
[[gnu::always_inline]] inline float log10(float x) {
  const float y = static_cast<float>(detail::log2_of(std::fabs(x)) * 0.30102999566398120);
  return x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
}

/// x to the power y with the special cases of C's pow(); within 0.51 ulp. Inlined always: a call in a loop would keep
/// it from being vectorised.
[[gnu::always_inline]] inline float pow(float x, float y) {
  const float a = std::fabs(x);
  const double log = detail::log2_of(a);
  // 2^t for t = n + r; beyond the bounds the result is 0 or infinity in float.
  double t = static_cast<double>(y) * log;
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  const double shifted = t + detail::kRoundDouble;
  const double r = (t - (shifted - detail::kRoundDouble)) * 0.69314718055994531;
  double e = 1.0 / 39916800;
  e = std::fma(e, r, 1.0 / 3628800);
  e = std::fma(e, r, 1.0 / 362880);
  e = std::fma(e, r, 1.0 / 40320);
  e = std::fma(e, r, 1.0 / 5040);
  e = std::fma(e, r, 1.0 / 720);
  e = std::fma(e, r, 1.0 / 120);
  e = std::fma(e, r, 1.0 / 24);
  e = std::fma(e, r, 1.0 / 6);
  e = std::fma(e, r, 0.5);
  e = std::fma(e, r, 1.0);
  e = std::fma(e, r, 1.0);
  const std::uint64_t exponent = static_cast<std::uint64_t>(detail::low_bits(shifted) + 1023) << 52;
  const float size = static_cast<float>(e * std::bit_cast<double>(exponent));
  const bool is_whole = std::floor(y) == y;
  const bool is_odd = is_whole & (std::floor(y * 0.5f) * 2.0f != y);
  const bool is_negative = (std::bit_cast<std::uint32_t>(x) >> 31) != 0;
  const float value = (is_negative & is_odd) ? -size : size;
  const bool undefined = (x < 0.0f) & (a < std::numeric_limits<float>::infinity()) & !is_whole & (y == y);
  const bool is_one = (x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (std::fabs(y) > 0x1p120f));
  return is_one ? 1.0f : (undefined ? std::numeric_limits<float>::quiet_NaN() : value);
}

/// Arguments for which near_sin(), near_cos() and near_tan() hold; sin(), cos() and tan() serve the others too.
inline bool is_near(float x) {
  return std::fabs(x) <= 0x1p30f;
}

namespace detail {
/// Sine and cosine of x - turns pi / 2, which is at most about pi / 4, for |x| <= 2^30.
struct Quarter {
  double sine, cosine;
  std::int64_t turns;
};
[[gnu::always_inline]] inline Quarter near_quarter(float x) {
  const double wide = static_cast<double>(x);
  const double shifted = std::fma(wide, 0.63661977236758134, kRoundDouble);
  const double whole = shifted - kRoundDouble;
  const double r = std::fma(-whole, 6.123233995736766e-17, std::fma(-whole, 1.5707963267948966, wide));
  const double z = r * r;
  double s = 1.0 / 6227020800;
  s = std::fma(s, z, -1.0 / 39916800);
  s = std::fma(s, z, 1.0 / 362880);
  s = std::fma(s, z, -1.0 / 5040);
  s = std::fma(s, z, 1.0 / 120);
  s = std::fma(s, z, -1.0 / 6);
  s = std::fma(s * z, r, r);
  double c = -1.0 / 87178291200;
  c = std::fma(c, z, 1.0 / 479001600);
  c = std::fma(c, z, -1.0 / 3628800);
  c = std::fma(c, z, 1.0 / 40320);
  c = std::fma(c, z, -1.0 / 720);
  c = std::fma(c, z, 1.0 / 24);
  c = std::fma(c, z, -0.5);
  c = std::fma(c, z, 1.0);
  return {s, c, low_bits(shifted)};
}
/// sin(x + quarters pi / 2) for |x| <= 2^30; within 0.51 ulp.
[[gnu::always_inline]] inline float near_sine(float x, std::int64_t quarters) {
  const Quarter at = near_quarter(x);
  const std::uint64_t turn = static_cast<std::uint64_t>(at.turns + quarters);
  const double value = (turn & 1) != 0 ? at.cosine : at.sine;
  const double turned = std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) ^ ((turn & 2) << 62));
  return static_cast<float>(turned);
}
}  // namespace detail

/// sin(x) where is_near(x).
[[gnu::always_inline]] inline float near_sin(float x) {
  const float y = detail::near_sine(x, 0);
  return x == 0.0f ? x : y;
}
/// cos(x) where is_near(x).
[[gnu::always_inline]] inline float near_cos(float x) {
  return detail::near_sine(x, 1);
}
/// tan(x) where is_near(x); within 0.51 ulp.
[[gnu::always_inline]] inline float near_tan(float x) {
  const detail::Quarter at = detail::near_quarter(x);
  const bool turned = (at.turns & 1) != 0;
  const double y = (turned ? -at.cosine : at.sine) / (turned ? at.sine : at.cosine);
  return x == 0.0f ? x : static_cast<float>(y);
}
[[gnu::always_inline]] inline float sin(float x) {
  return is_near(x) ? near_sin(x) : static_cast<float>(portable_sin(static_cast<double>(x)));
}
[[gnu::always_inline]] inline float cos(float x) {
  return is_near(x) ? near_cos(x) : static_cast<float>(portable_cos(static_cast<double>(x)));
}
[[gnu::always_inline]] inline float tan(float x) {
  return is_near(x) ? near_tan(x) : static_cast<float>(portable_tan(static_cast<double>(x)));
}

}  // namespace lockstep::math
