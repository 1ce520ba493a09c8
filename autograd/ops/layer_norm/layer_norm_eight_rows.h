#pragma once

// Sums over eight rows of floats at a time. For .cpp files only.

#include <cmath>
#include <cstdint>

#include "lockstep/autograd/ops/layer_norm/layer_norm_moments.h"
#include "lockstep/autograd/ops/reduce/reduce_fold.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::layer_norm_rows {

inline constexpr std::int64_t kTogether = 8;

/// Rows that sums_of_eight() can add up.
inline bool fits_eight_rows(std::int64_t width) {
  return width > 0 && width % cpu::kSumLanes == 0 && width <= 4096;
}

struct FloatSum {
  using Total = float;
  template <typename V>
  [[gnu::always_inline]] static V join_lanes(V a, V b) {
    return a + b;
  }
};

/// sums[r] = cpu::long_sum<float>() of row r, bit for bit: its sixteen lanes are two vectors, which are joined half to
/// half. term(r, i) is eight terms of row r from i on.
template <typename Term>
[[gnu::always_inline]] inline void sums_of_eight(std::int64_t width, Term&& term, double* sums) {
  cpu::Vec8 rows[kTogether];
  for (int r = 0; r < kTogether; ++r) {
    cpu::Vec8 low{}, high{};
    for (std::int64_t i = 0; i < width; i += cpu::kSumLanes) {
      low += term(r, i);
      high += term(r, i + cpu::kLanes);
    }
    rows[r] = low + high;
  }
  float values[kTogether];
  cpu::store8(values, cpu::Vec8{} + reduce_fold::join_rows<FloatSum>(rows));
  for (int r = 0; r < kTogether; ++r) sums[r] = 0.0 + static_cast<double>(values[r]);
}

/// moments_of() of eight rows, one behind the other.
[[gnu::always_inline]] inline void moments_of_eight(const float* x, std::int64_t width, double eps, bool centred,
                                                    Moments<float>* moments) {
  const auto n = static_cast<double>(width);
  double sums[kTogether];
  float mean[kTogether] = {}, rest[kTogether] = {}, inverse[kTogether];
  if (centred) {
    sums_of_eight(
        width, [&](int r, std::int64_t i) { return cpu::load8(x + r * width + i); }, sums);
    for (int r = 0; r < kTogether; ++r) mean[r] = static_cast<float>(sums[r] / n);
    sums_of_eight(
        width, [&](int r, std::int64_t i) { return cpu::load8(x + r * width + i) - cpu::broadcast8(mean[r]); }, sums);
    for (int r = 0; r < kTogether; ++r) rest[r] = static_cast<float>(sums[r] / n);
  }
  sums_of_eight(
      width,
      [&](int r, std::int64_t i) {
        const cpu::Vec8 difference =
            cpu::load8(x + r * width + i) - cpu::broadcast8(mean[r]) - cpu::broadcast8(rest[r]);
        return difference * difference;
      },
      sums);
  for (int r = 0; r < kTogether; ++r) inverse[r] = static_cast<float>(1.0 / std::sqrt(sums[r] / n + eps));
  for (int r = 0; r < kTogether; ++r) moments[r] = {mean[r], inverse[r], rest[r]};
}

}  // namespace lockstep::layer_norm_rows
