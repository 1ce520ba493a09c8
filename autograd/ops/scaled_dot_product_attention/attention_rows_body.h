#pragma once

// Rows of float32 scores by vectors, written once over a description of a vector: included by the file of each, after
// the description. As that of AVX-512 must share no code with others (Note [One instruction set a file] in
// core/cpu/gemm/micro_kernel_body.h), all is in an unnamed namespace.
//
// A description V of vectors has
//   Vector, kLanes            8 or 16 floats
//   broadcast(x), load(p), store(p, v), larger(x, y)   a > b ? a : b of each lane
//   first_or(v, n, other)     lanes from n on are other's
//   exp_to_one(x)             math::exp_to_one() of each lane, bit for bit
//   low(v), high(v)           eight lanes of sixteen
// and Sums, the sixteen lanes of cpu::lane_sum(): add(j, v) adds v to those from lane j % 16 on, folded() is the eight
// sums of lanes that are eight apart.

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_rows.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::detail {
namespace {

constexpr float kNone = -__builtin_inff();

[[gnu::always_inline]] inline float highest_lane(cpu::Vec8 v) {
  v = cpu::larger8(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = cpu::larger8(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  return v[0] > v[1] ? v[0] : v[1];
}

// The highest of `count` scores and `top`.
template <typename V>
[[gnu::always_inline]] inline float highest(const float* s, std::int64_t count, float top) {
  typename V::Vector a = V::broadcast(kNone), b = a;
  std::int64_t j = 0;
  for (; j + 2 * V::kLanes <= count; j += 2 * V::kLanes) {
    a = V::larger(V::load(s + j), a);
    b = V::larger(V::load(s + j + V::kLanes), b);
  }
  for (; j < count; j += V::kLanes) a = V::larger(V::first_or(V::load(s + j), count - j, V::broadcast(kNone)), a);
  a = V::larger(a, b);
  const float found = highest_lane(cpu::larger8(V::low(a), V::high(a)));
  return top < found ? found : top;
}

// The sum of the last count % 16 elements of a row, or of all if they are fewer, and of the lanes before.
template <typename V>
[[gnu::always_inline]] inline float sum_of(const typename V::Sums& sums, const float* s, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  if (count < kLanes) {
    float even = 0, odd = 0;
    for (std::int64_t j = 0; j + 1 < count; j += 2) {
      even += s[j];
      odd += s[j + 1];
    }
    return count % 2 == 1 ? even + odd + s[count - 1] : even + odd;
  }
  float rest = 0;
  for (std::int64_t j = count - count % kLanes; j < count; ++j) rest += s[j];
  const cpu::Vec8 x = sums.folded();
  const float even = (x[0] + x[4]) + (x[2] + x[6]), odd = (x[1] + x[5]) + (x[3] + x[7]);
  return rest + (even + odd);
}

template <typename V>
void weigh_rows(const RowStrip<float>& scores, float* top, float* sum, float* factor) {
  for (std::int64_t i = 0; i < scores.count; ++i) {
    float* const s = scores.rows + i * scores.stride;
    const std::int64_t seen = scores.seen_by(i);
    factor[i] = 1;
    std::int64_t j = 0;
    if (seen > 0) {
      const float now = highest<V>(s, seen, top[i]), shift = now == kNone ? 0.0f : now;
      const typename V::Vector below = V::broadcast(shift);
      typename V::Sums sums;
      const std::int64_t whole = seen - seen % 16;
      for (; j < whole; j += V::kLanes) {
        const typename V::Vector e = V::exp_to_one(V::load(s + j) - below);
        V::store(s + j, e);
        sums.add(j, e);
      }
      for (; j < seen; j += V::kLanes) {
        const typename V::Vector e = V::exp_to_one(V::load(s + j) - below);
        V::store(s + j, V::first_or(e, seen - j, V::broadcast(0.0f)));
      }
      if (top[i] != now) {
        factor[i] = top[i] == kNone ? 0.0f : V::low(V::exp_to_one(V::broadcast(top[i]) - below))[0];
        top[i] = now;
      }
      sum[i] = sum[i] * factor[i] + sum_of<V>(sums, s, seen);
    }
    for (; j < scores.across; j += V::kLanes) V::store(s + j, V::broadcast(0.0f));
  }
}

template <typename V>
void slope_rows(const RowStrip<float>& weights, float* slopes, const float* log_sums, const float* deltas,
                float scale) {
  for (std::int64_t i = 0; i < weights.count; ++i) {
    float *const p = weights.rows + i * weights.stride, *const s = slopes + i * weights.stride;
    const typename V::Vector below = V::broadcast(log_sums[i]), less = V::broadcast(deltas[i]);
    const typename V::Vector none = V::broadcast(0.0f), by = V::broadcast(scale);
    const std::int64_t seen = weights.seen_by(i);
    std::int64_t j = 0;
    for (; j < seen; j += V::kLanes) {
      const typename V::Vector e = V::exp_to_one(V::load(p + j) - below), slope = e * (V::load(s + j) - less) * by;
      const bool all = j + V::kLanes <= seen;
      V::store(p + j, all ? e : V::first_or(e, seen - j, none));
      V::store(s + j, all ? slope : V::first_or(slope, seen - j, none));
    }
    for (; j < weights.across; j += V::kLanes) {
      V::store(p + j, none);
      V::store(s + j, none);
    }
  }
}

}  // namespace
}  // namespace lockstep::detail
