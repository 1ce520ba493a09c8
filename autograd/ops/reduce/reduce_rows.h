#pragma once

// Reductions of rows that lie in memory as the kernel computes, some of them at a time. For .cpp files only.

#include <algorithm>

#include "lockstep/autograd/ops/reduce/reduce_fold.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/double_math_lines.h"

namespace lockstep::reduce_fold {

// Note [Rows together]
// What follows the additions of a short row (its lanes are joined, the total is divided, a logarithm is taken) takes
// longer than they do. So as many rows as a vector has lanes are joined together, by vectors, and what is done to
// totals is done in loops over them. Each row's terms meet as in fold_chunk(), so that nothing depends on its
// neighbours.

/// Rows to a step: their totals stay in the first-level cache.
inline constexpr std::int64_t kRows = 64;

/// fold_chunk() of the terms' maps, up to its last step: what its lanes make is yet to be joined. kVectors is 4, or
/// fewer if so many hold all terms; kWhole: the terms fill them.
template <typename R, typename C, int kVectors, bool kWhole>
[[gnu::always_inline]] inline typename Vector<typename R::Total>::Type fold_to_vector(const C* values,
                                                                                      std::int64_t count, C about) {
  using V = Vector<C>;
  const typename V::Type centre = V::all(about);
  const auto map = [&](typename V::Type v) {
    if constexpr (requires { R::map_lanes(v, v); }) {
      return R::map_lanes(v, centre);
    } else {
      return v;
    }
  };
  typename V::Type lanes[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) lanes[i] = V::all(R::start());
  std::int64_t at = 0;
  if constexpr (kWhole && kVectors < 4) count = kVectors * V::kLanes;
  if constexpr (kWhole || kVectors == 4)
    for (; at + kVectors * V::kLanes <= count; at += kVectors * V::kLanes)
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) lanes[i] = R::fold_lanes(lanes[i], map(V::load(values + at + i * V::kLanes)));
  if constexpr (kWhole) return join_vectors<R, C, kVectors>(lanes);
  // What is left fills all but the last of fewer than four vectors, and any number of four.
  std::int64_t left = count - at;
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i, at += V::kLanes, left -= V::kLanes) {
    if (kVectors < 4 && i < kVectors - 1) {
      lanes[i] = R::fold_lanes(lanes[i], map(V::load(values + at)));
    } else {
      const std::int64_t some = std::clamp<std::int64_t>(left, 0, V::kLanes);
      typename V::Type v = map(load_some(values + at, some));
      if constexpr (R::kMaps || !std::is_base_of_v<Sum<C>, R>) v = first_lanes<C>(v, some, R::start());
      lanes[i] = R::fold_lanes(lanes[i], v);
    }
  }
  return join_vectors<R, C, kVectors>(lanes);
}

/// totals[r] of the row that begins at rows + r * stride, r < n: chunks of cpu::kRowChunk terms are joined in order.
template <typename R, typename C, int kVectors, bool kWhole>
[[gnu::always_inline]] inline void fold_rows(const C* rows, std::int64_t stride, std::int64_t n, std::int64_t count,
                                             const C* about, typename R::Total* totals) {
  using Total = typename R::Total;
  using V = Vector<Total>;
  std::int64_t r = 0;
  for (; r + V::kLanes <= n; r += V::kLanes) {
    typename V::Type total = V::all(R::start());
    for (std::int64_t at = 0; at < count; at += cpu::kRowChunk) {
      const std::int64_t length = std::min(cpu::kRowChunk, count - at);
      typename V::Type folded[V::kLanes];
#pragma GCC unroll 8
      for (int i = 0; i < V::kLanes; ++i)
        folded[i] = fold_to_vector<R, C, kVectors, kWhole>(rows + (r + i) * stride + at, length, about[r + i]);
      total = R::join_lanes(total, join_rows<R>(folded));
    }
    std::memcpy(totals + r, &total, sizeof total);
  }
  for (; r < n; ++r) {
    Total total = R::start();
    for (std::int64_t at = 0; at < count; at += cpu::kRowChunk)
      total = R::join(total, join_lanes<R>(fold_to_vector<R, C, kVectors, kWhole>(
                                 rows + r * stride + at, std::min(cpu::kRowChunk, count - at), about[r])));
    totals[r] = total;
  }
}
template <typename R, typename C>
[[gnu::always_inline]] inline void fold_rows(const C* rows, std::int64_t stride, std::int64_t n, std::int64_t count,
                                             const C* about, typename R::Total* totals) {
  constexpr std::int64_t kLanes = Vector<C>::kLanes;
  const auto fold = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
    if (count % (kVectors * kLanes) == 0)
      fold_rows<R, C, kVectors, true>(rows, stride, n, count, about, totals);
    else
      fold_rows<R, C, kVectors, false>(rows, stride, n, count, about, totals);
  };
  if (count <= kLanes) return fold(std::integral_constant<int, 1>());
  if (count <= 2 * kLanes) return fold(std::integral_constant<int, 2>());
  if (count <= 3 * kLanes) return fold(std::integral_constant<int, 3>());
  fold(std::integral_constant<int, 4>());
}

/// The sums of exp(value - about) over rows, whose exponentials are computed in long runs.
template <typename C>
[[gnu::always_inline]] inline void fold_exponentials(const C* rows, std::int64_t stride, std::int64_t n,
                                                     std::int64_t count, const C* about, double* totals) {
  constexpr std::int64_t kMost = 2048;
  using V = Vector<C>;
  C buffer[kMost + V::kLanes];
  const std::int64_t length = std::min(count, cpu::kRowChunk);
  const std::int64_t together = std::min(n, std::max<std::int64_t>(1, kMost / length));
  for (std::int64_t r = 0; r < n; r += together) {
    const std::int64_t some = std::min(together, n - r);
    std::fill_n(totals + r, some, 0.0);
    for (std::int64_t at = 0; at < count; at += length) {
      const std::int64_t terms = std::min(length, count - at);
      for (std::int64_t i = 0; i < some; ++i) {  // what is written behind a row's end the next one overwrites
        const C* from = rows + (r + i) * stride + at;
        const typename V::Type centre = V::all(about[r + i]);
        for (std::int64_t t = 0; t < terms; t += V::kLanes) {
          const typename V::Type v =
              (t + V::kLanes <= terms ? V::load(from + t) : load_some(from + t, terms - t)) - centre;
          std::memcpy(buffer + i * terms + t, &v, sizeof v);
        }
      }
      const std::int64_t all = some * terms;
      if constexpr (std::is_same_v<C, float>) {
        LOCKSTEP_VECTORIZE
        for (std::int64_t i = 0; i < all; ++i) buffer[i] = math::exp(buffer[i]);
      } else {
        if (math::lines::all_near(all, [&](std::int64_t i) { return math::lines::is_near_exp(buffer[i]); })) {
          LOCKSTEP_VECTORIZE
          for (std::int64_t i = 0; i < all; ++i) buffer[i] = math::lines::exp_of_near(buffer[i], 0);
        } else {
          for (std::int64_t i = 0; i < all; ++i) buffer[i] = math::portable_exp(buffer[i]);
        }
      }
      double part[kRows];
      fold_rows<Sum<C>, C>(static_cast<const C*>(buffer), terms, some, terms, about, part);
      for (std::int64_t i = 0; i < some; ++i) totals[r + i] += part[i];
    }
  }
}

/// out[r] = R::finish() of the totals.
template <typename R, typename C>
[[gnu::always_inline]] inline void finish_rows(const typename R::Total* totals, const C* about, double divisor,
                                               std::int64_t n, C* out) {
  if constexpr (requires { R::kLogarithm; }) {
    if (math::lines::all_near(n, [&](std::int64_t r) { return math::lines::is_near_log(totals[r]); })) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t r = 0; r < n; ++r)
        out[r] = static_cast<C>(static_cast<double>(about[r]) + math::lines::log_of_near(totals[r]));
      return;
    }
  } else if (divisor == 1.0) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t r = 0; r < n; ++r) out[r] = static_cast<C>(totals[r]);
    return;
  }
  LOCKSTEP_VECTORIZE
  for (std::int64_t r = 0; r < n; ++r) out[r] = R::finish(totals[r], about[r], divisor);
}

/// out[r] of n rows of neighbours, `stride` apart. `about` is null where nothing is subtracted.
template <typename R, typename C>
void reduce_rows(const C* rows, std::int64_t stride, std::int64_t n, std::int64_t count, const C* about, double divisor,
                 C* out) {
  cpu::by_widest_vectors([=] {
    for (std::int64_t r = 0; r < n; r += kRows) {
      const std::int64_t some = std::min(kRows, n - r);
      typename R::Total totals[kRows];
      C centres[kRows] = {};
      if (about)
        for (std::int64_t i = 0; i < some; ++i) {
          centres[i] = about[r + i];
          if constexpr (requires { R::shift(centres[i]); }) centres[i] = R::shift(centres[i]);
        }
      if constexpr (requires { R::kLogarithm; })
        fold_exponentials(rows + r * stride, stride, some, count, static_cast<const C*>(centres), totals);
      else
        fold_rows<R, C>(rows + r * stride, stride, some, count, static_cast<const C*>(centres), totals);
      finish_rows<R, C>(totals, centres, divisor, some, out + r);
    }
  });
}

}  // namespace lockstep::reduce_fold
