#pragma once

// The CPU's exp, log and atan of float32, also for kernels of a GPU that are to have the CPU's bits: see Note [Vector
// math] and Note [Portable arithmetic]. For kernels (.cpp and .cu) only.

#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/core/philox.h"

namespace lockstep::math::fixed {

LOCKSTEP_HOST_DEVICE inline float as_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);  // std::bit_cast is the host's alone
}
LOCKSTEP_HOST_DEVICE inline std::uint32_t as_bits(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}

/// 2^n for -126 <= n <= 127, and 0 for -127.
LOCKSTEP_HOST_DEVICE inline float power_of_two(std::int32_t n) {
  return as_float((static_cast<std::uint32_t>(n) + 127u) << 23);
}
/// Adding it leaves the nearest integer in the low bits of the float.
inline constexpr float kRound = 0x1.8p23f;
inline constexpr std::uint32_t kExponents = 0x4b400000u - 2 * 127;  // its bits, less the zero points of two exponents
// ln 2 in two parts, the first of which has few bits, so that products with small integers are exact; and
// exp(r) = 1 + r + r^2 (kExp2 + kExp3 r + ...) for |r| <= ln 2 / 2.
inline constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
inline constexpr float kExp2 = 0.5f, kExp3 = 0.16666576846f, kExp4 = 0.0416665544377f, kExp5 = 0.00836320297158f,
                       kExp6 = 0.00139262134663f;
inline constexpr float kSmallest = std::numeric_limits<float>::min();
inline constexpr float kInfinite = std::numeric_limits<float>::infinity();
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// Inlined always, as all functions for loops over vectors: a call would keep a loop from being vectorised, and
// compilers stop inlining where a function has many loops.

/// Where exp() is 0 without rounding: both steps of exp_within() then multiply by 0. From -104 on results round to 0 as
/// well, but products that are too small to be normal take a processor a hundred times as long, and masked scores are
/// far below.
inline constexpr float kFarBelow = -176.0f;

/// exp(x) for kFarBelow <= x <= 89, or NaN.
[[gnu::always_inline]] LOCKSTEP_HOST_DEVICE inline float exp_within(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2.
  const float shifted = std::fma(x, kLog2E, kRound);
  const std::uint32_t biased = as_bits(shifted) - kExponents;  // n and the zero points of two exponents
  const float whole = shifted - kRound;
  const float r = std::fma(whole, -kLn2Low, std::fma(whole, -kLn2High, x));
  float p = kExp6;
  p = std::fma(p, r, kExp5);
  p = std::fma(p, r, kExp4);
  p = std::fma(p, r, kExp3);
  p = std::fma(p, r, kExp2);
  p = std::fma(p * r, r, r) + 1.0f;
  // Two steps, because 2^n itself may be subnormal or beyond the largest float.
  const std::uint32_t half = biased >> 1;
  return p * as_float(half << 23) * as_float((biased - half) << 23);
}

// The bounds give 0 and infinity; NaN fails both comparisons and passes through.
[[gnu::always_inline]] LOCKSTEP_HOST_DEVICE inline float exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  return exp_within(x < kFarBelow ? kFarBelow : x);
}

/// The same where x is at most 0, or NaN, without the comparison that it does not need.
[[gnu::always_inline]] LOCKSTEP_HOST_DEVICE inline float exp_to_one(float x) {
  return exp_within(x < kFarBelow ? kFarBelow : x);
}
/// The same where x is at least 0, or NaN.
[[gnu::always_inline]] LOCKSTEP_HOST_DEVICE inline float exp_from_one(float x) {
  return exp_within(x > 89.0f ? 89.0f : x);
}

[[gnu::always_inline]] LOCKSTEP_HOST_DEVICE inline float log(float x) {
  const bool subnormal = x < kSmallest;
  const float scaled = subnormal ? x * 0x1p23f : x;
  // scaled = m 2^k with m in [sqrt(1/2), sqrt(2)): shift the exponent's zero point to sqrt(1/2) and back.
  const std::uint32_t bits = as_bits(scaled) - 0x3f3504f3u;
  const float k = static_cast<float>(static_cast<std::int32_t>(bits) >> 23) - (subnormal ? 23.0f : 0.0f);
  const float f = as_float((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  // log(1 + f) = 2 s + s^3 R(s^2), s = f / (2 + f), arranged so that the large part f is added last.
  const float s = f / (2.0f + f);
  const float z = s * s;
  const float r =
      z * std::fma(z, std::fma(z, std::fma(z, 0.233305624972f, 0.285508173142f), 0.400001218707f), 0.666666665545f);
  const float square = 0.5f * f * f;
  const float low = std::fma(s, square + r, k * kLn2Low);
  const float y = std::fma(k, kLn2High, f - (square - low));
  const float limit = x == 0.0f ? -kInfinite : (x < 0.0f ? kNotANumber : x);  // infinity, NaN
  return x > 0.0f && x < kInfinite ? y : limit;
}

/// atan(t) for 0 <= t <= 1: a polynomial in its square, a Chebyshev fit made for this file.
[[gnu::always_inline]] LOCKSTEP_HOST_DEVICE inline float atan_to_one(float t) {
  const float z = t * t;
  float p = 0.0028340641874819994f;
  p = std::fma(p, z, -0.016005029901862144f);
  p = std::fma(p, z, 0.042587608098983765f);
  p = std::fma(p, z, -0.07495445758104324f);
  p = std::fma(p, z, 0.10636754333972931f);
  p = std::fma(p, z, -0.14202570915222168f);
  p = std::fma(p, z, 0.19992484152317047f);
  p = std::fma(p, z, -0.3333306610584259f);
  return std::fma(t, p * z, t);
}

}  // namespace lockstep::math::fixed
