#pragma once

// Sums that the compiler turns into vector code without -ffast-math, because the order of additions is spelled out.
// For kernels (.cpp and .cu) only.

#include <cstdint>

#include "lockstep/core/philox.h"

namespace lockstep::cpu {

inline constexpr int kSumLanes = 16;

/// The sum of term(0) ... term(n - 1), added up in interleaved lanes. The order depends on n alone.
template <typename T, typename Term>
LOCKSTEP_HOST_DEVICE T lane_sum(std::int64_t n, Term&& term) {
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
LOCKSTEP_HOST_DEVICE T lane_max(std::int64_t n, const Value* values) {
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
