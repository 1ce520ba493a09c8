#pragma once

// Mean and deviation of a row on the CPU. For .cpp files only.

#include <cmath>
#include <cstdint>

#include "lockstep/core/cpu/lane_sum.h"

namespace lockstep::layer_norm_rows {

/// The mean is mean + rest: one far from zero is rounded to more than the values differ by; what it is off by, `rest`,
/// is a mean of small numbers.
template <typename C>
struct Moments {
  C mean, inverse, rest;  ///< inverse: 1 / sqrt(variance + eps)
  C normalized(C x) const { return (x - mean - rest) * inverse; }
};

/// Of `width` values, 0 < width; unless `centred`, the mean counts as 0.
template <typename C, typename T>
Moments<C> moments_of(const T* x, std::int64_t width, double eps, bool centred) {
  const auto n = static_cast<double>(width);
  C mean = 0, rest = 0;
  if (centred) {
    mean = static_cast<C>(cpu::long_sum<C>(width, [&](std::int64_t i) { return static_cast<C>(x[i]); }) / n);
    rest = static_cast<C>(cpu::long_sum<C>(width, [&](std::int64_t i) { return static_cast<C>(x[i]) - mean; }) / n);
  }
  const double variance = cpu::long_sum<C>(width,
                                           [&](std::int64_t i) {
                                             const C difference = static_cast<C>(x[i]) - mean - rest;
                                             return difference * difference;
                                           }) /
                          n;
  return {mean, static_cast<C>(1.0 / std::sqrt(variance + eps)), rest};
}

}  // namespace lockstep::layer_norm_rows
