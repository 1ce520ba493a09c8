#pragma once

// Rows of scores on their way to weights and gradients. For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::detail {

/// Neighbouring rows of a tile. Row i sees its first seen_by(i) keys; products read `across` of each, at least as many.
/// Whole vectors of sixteen may be read and written at the end of a row.
template <typename C>
struct RowStrip {
  C* rows;
  std::int64_t stride, count;
  std::int64_t keys, seen, step;  ///< row i sees seen + i * step keys, of those that there are
  std::int64_t across;

  std::int64_t seen_by(std::int64_t i) const {
    const std::int64_t n = seen + i * step;
    return n < 0 ? 0 : n < keys ? n : keys;
  }
};

/// The functions below for float32, with the bits of the loops for other types.
struct RowFunctions {
  void (*weigh)(const RowStrip<float>& scores, float* top, float* sum, float* factor);
  void (*slopes)(const RowStrip<float>& weights, float* slopes, const float* log_sums, const float* deltas,
                 float scale);
};

/// By vectors of eight, anywhere; of sixteen, on a processor with AVX-512 (x86-64 alone).
extern const RowFunctions kRowsByEight, kRowsBySixteen;
/// The fastest that this process may use.
const RowFunctions& row_functions();

/// Scores become exp(score - top[i]), of keys that are not seen 0, where top[i] becomes the highest score so far.
/// sum[i] gets their sum, in the order of cpu::lane_sum(), after it and what was weighed before are multiplied by
/// factor[i].
template <typename C>
void weigh(const RowStrip<C>& scores, C* top, C* sum, C* factor) {
  if constexpr (std::is_same_v<C, float>) {
    row_functions().weigh(scores, top, sum, factor);
  } else {
    constexpr C kNone = -std::numeric_limits<C>::infinity();
    for (std::int64_t i = 0; i < scores.count; ++i) {
      C* const s = scores.rows + i * scores.stride;
      const std::int64_t seen = scores.seen_by(i);
      factor[i] = C(1);
      if (seen > 0) {
        const C highest = std::max(top[i], cpu::lane_max<C>(seen, s)), shift = highest == kNone ? C(0) : highest;
        LOCKSTEP_VECTORIZE
        for (std::int64_t j = 0; j < seen; ++j) s[j] = math::exp_to_one(s[j] - shift);
        factor[i] = top[i] == kNone ? C(0) : math::exp_to_one(top[i] - shift);
        sum[i] = sum[i] * factor[i] + cpu::lane_sum<C>(seen, [&](std::int64_t j) { return s[j]; });
        top[i] = highest;
      }
      std::fill(s + seen, s + scores.across, C(0));
    }
  }
}

/// Scores become exp(score - log_sums[i]), slopes become weight * (slope - deltas[i]) * scale, both 0 for keys that are
/// not seen. `slopes` lies like the weights.
template <typename C>
void weigh_slopes(const RowStrip<C>& weights, C* slopes, const C* log_sums, const C* deltas, C scale) {
  if constexpr (std::is_same_v<C, float>) {
    row_functions().slopes(weights, slopes, log_sums, deltas, scale);
  } else {
    for (std::int64_t i = 0; i < weights.count; ++i) {
      C *const p = weights.rows + i * weights.stride, *const s = slopes + i * weights.stride;
      const std::int64_t seen = weights.seen_by(i);
      LOCKSTEP_VECTORIZE
      for (std::int64_t j = 0; j < seen; ++j) {
        p[j] = math::exp_to_one(p[j] - log_sums[i]);
        s[j] = p[j] * (s[j] - deltas[i]) * scale;
      }
      std::fill(p + seen, p + weights.across, C(0));
      std::fill(s + seen, s + weights.across, C(0));
    }
  }
}

}  // namespace lockstep::detail
