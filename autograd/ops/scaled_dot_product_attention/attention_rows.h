#pragma once

// Rows of scores on their way to weights and gradients. Those of float32 go vector by vector, with the bits of the
// loops for other types. For .cpp files only.

#include <cstdint>
#include <type_traits>

#include "lockstep/core/cpu/exp8.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::detail {

/// The largest of `count` scores, 0 < count.
template <typename C>
C highest_score(std::int64_t count, const C* scores) {
  if constexpr (std::is_same_v<C, float>) {
    constexpr std::int64_t kLanes = cpu::kLanes;
    if (count % (2 * kLanes) == 0) {
      cpu::Vec8 a = cpu::load8(scores), b = cpu::load8(scores + kLanes);
      for (std::int64_t j = 2 * kLanes; j < count; j += 2 * kLanes) {
        a = cpu::larger8(cpu::load8(scores + j), a);
        b = cpu::larger8(cpu::load8(scores + j + kLanes), b);
      }
      a = cpu::larger8(a, b);
      a = cpu::larger8(a, __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3));
      a = cpu::larger8(a, __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5));
      return a[0] > a[1] ? a[0] : a[1];
    }
  }
  return cpu::lane_max<C>(count, scores);
}

// What exponentials() and weights_and_slopes() give, by the compiler's vectors.
template <typename C>
C plain_exponentials(C* scores, std::int64_t count, std::int64_t padded, C shift) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < padded; ++i) scores[i] = math::exp(scores[i] - shift);
  return cpu::lane_sum<C>(count, [&](std::int64_t i) { return scores[i]; });
}
template <typename C>
void plain_weights_and_slopes(C* weights, C* slopes, std::int64_t padded, C log_sum, C delta, C scale) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < padded; ++i) {
    weights[i] = math::exp(weights[i] - log_sum);
    slopes[i] = weights[i] * (slopes[i] - delta) * scale;
  }
}

/// scores[j] = exp(scores[j] - shift) for j < padded; gives cpu::lane_sum() of the first `count` of them.
template <typename C>
C exponentials(C* scores, std::int64_t count, std::int64_t padded, C shift) {
  std::int64_t j = 0;
  if constexpr (std::is_same_v<C, float>) {
    if (cpu::has_wide_functions())
      return cpu::by_widest_vectors([=] { return plain_exponentials(scores, count, padded, shift); });
    constexpr std::int64_t kLanes = cpu::kLanes;
    static_assert(cpu::kSumLanes == 2 * kLanes);
    if (count >= cpu::kSumLanes) {
      const cpu::Vec8 below = cpu::broadcast8(shift);
      cpu::Vec8 low{}, high{};
      for (; j + cpu::kSumLanes <= count; j += cpu::kSumLanes) {
        const cpu::Vec8 a = cpu::exp8(cpu::load8(scores + j) - below);
        const cpu::Vec8 b = cpu::exp8(cpu::load8(scores + j + kLanes) - below);
        cpu::store8(scores + j, a);
        cpu::store8(scores + j + kLanes, b);
        low += a;
        high += b;
      }
      low += high;
      const C even = (low[0] + low[4]) + (low[2] + low[6]), odd = (low[1] + low[5]) + (low[3] + low[7]);
      const std::int64_t whole = j;
      for (; j + kLanes <= padded; j += kLanes) cpu::store8(scores + j, cpu::exp8(cpu::load8(scores + j) - below));
      for (; j < padded; ++j) scores[j] = math::exp(scores[j] - shift);
      C rest = 0;
      for (j = whole; j < count; ++j) rest += scores[j];
      return rest + (even + odd);
    }
  }
  return plain_exponentials(scores, count, padded, shift);
}

/// weights[j] = exp(weights[j] - log_sum), then, where nothing is dropped, slopes[j] = weights[j] * (slopes[j] - delta)
/// * scale, for j < padded.
template <typename C>
void weights_and_slopes(C* weights, C* slopes, std::int64_t padded, C log_sum, C delta, C scale) {
  std::int64_t j = 0;
  if constexpr (std::is_same_v<C, float>) {
    if (cpu::has_wide_functions())
      return cpu::by_widest_vectors([=] { plain_weights_and_slopes(weights, slopes, padded, log_sum, delta, scale); });
    const cpu::Vec8 below = cpu::broadcast8(log_sum), less = cpu::broadcast8(delta), by = cpu::broadcast8(scale);
    for (; j + cpu::kLanes <= padded; j += cpu::kLanes) {
      const cpu::Vec8 p = cpu::exp8(cpu::load8(weights + j) - below);
      cpu::store8(weights + j, p);
      cpu::store8(slopes + j, p * (cpu::load8(slopes + j) - less) * by);
    }
  }
  plain_weights_and_slopes(weights + j, slopes + j, padded - j, log_sum, delta, scale);
}

}  // namespace lockstep::detail
