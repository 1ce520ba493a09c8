#pragma once

// Loops that the compiler turns into vector code without -ffast-math, because the order of additions is spelled out.
// For .cpp files only.

#include <bit>
#include <cmath>
#include <cstdint>

namespace lockstep::cpu {

/// exp(x) within 2 units in the last place, without branches or tables, so that a loop over it is vectorised. NaN stays
/// NaN, large x gives infinity, small x subnormals and then 0.
inline float vector_exp(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kRound = 12582912.0f;
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts: the first times n is exact
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n as a product of two powers: n reaches beyond the exponents of normal numbers on both sides.
  const auto exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const std::int32_t half = exponent >> 1;
  const auto power = [](std::int32_t e) { return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23); };
  return p * power(half) * power(exponent - half);
}
inline double vector_exp(double x) {
  return std::exp(x);
}

/// log(1 + x) for x in [0, 1], within 2 units in the last place.
inline float vector_log1p(float x) {
  // 2 atanh(s) = log((1 + s) / (1 - s)) with s = x / (2 + x) <= 1/3: the series in s^2 needs eight terms.
  const float s = x / (2.0f + x);
  const float z = s * s;
  float p = 1.0f / 15;
  p = p * z + 1.0f / 13;
  p = p * z + 1.0f / 11;
  p = p * z + 1.0f / 9;
  p = p * z + 1.0f / 7;
  p = p * z + 1.0f / 5;
  p = p * z + 1.0f / 3;
  p = p * z;
  return 2.0f * (s + s * p);
}
inline double vector_log1p(double x) {
  return std::log1p(x);
}

inline constexpr int kSumLanes = 16;

/// The sum of term(0) ... term(n - 1), added up in interleaved lanes. The order depends on n alone.
template <typename T, typename Term>
T lane_sum(std::int64_t n, Term&& term) {
  if (n < kSumLanes) {
    T even = 0, odd = 0;
    for (std::int64_t i = 0; i + 1 < n; i += 2) {
      even += term(i);
      odd += term(i + 1);
    }
    return n & 1 ? even + odd + term(n - 1) : even + odd;
  }
  T s[kSumLanes] = {};
  const std::int64_t whole = n / kSumLanes * kSumLanes;
  for (std::int64_t i = 0; i < whole; i += kSumLanes)
    for (int l = 0; l < kSumLanes; ++l) s[l] += term(i + l);
  T rest = 0;
  for (std::int64_t i = whole; i < n; ++i) rest += term(i);
  // Written out, so that the lanes stay in registers.
  const T even = ((s[0] + s[8]) + (s[4] + s[12])) + ((s[2] + s[10]) + (s[6] + s[14]));
  const T odd = ((s[1] + s[9]) + (s[5] + s[13])) + ((s[3] + s[11]) + (s[7] + s[15]));
  return rest + (even + odd);
}

/// The sum of n terms as a double: lanes of T over runs of up to 4096 terms, runs added in double.
template <typename T, typename Term>
double long_sum(std::int64_t n, Term&& term) {
  constexpr std::int64_t kRun = 4096;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t length = n - begin < kRun ? n - begin : kRun;
    total += static_cast<double>(lane_sum<T>(length, [&](std::int64_t i) { return term(begin + i); }));
  }
  return total;
}

/// The largest of values[0] ... values[n - 1], n > 0, as T. NaN may or may not win.
template <typename T, typename Value>
T lane_max(std::int64_t n, const Value* values) {
  const auto larger = [](T a, T b) { return a > b ? a : b; };
  T result = static_cast<T>(values[0]);
  const std::int64_t whole = n / kSumLanes * kSumLanes;
  if (whole > 0) {
    T lanes[kSumLanes];
    for (int l = 0; l < kSumLanes; ++l) lanes[l] = result;
    for (std::int64_t i = 0; i < whole; i += kSumLanes)
      for (int l = 0; l < kSumLanes; ++l) lanes[l] = larger(static_cast<T>(values[i + l]), lanes[l]);
    for (int l = 0; l < kSumLanes; ++l) result = larger(lanes[l], result);
  }
  const int rest = static_cast<int>(n - whole);
  for (int l = 0; l < rest; ++l) result = larger(static_cast<T>(values[whole + l]), result);
  return result;
}

}  // namespace lockstep::cpu
