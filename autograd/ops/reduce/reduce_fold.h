#pragma once

// How the terms of a reduction meet on the CPU, and in which order those that are neighbours do. For .cpp files only.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "lockstep/core/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // every function that takes or returns vectors is inlined

namespace lockstep::reduce_fold {

inline std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <typename C>
struct Sum {
  static constexpr bool kMaps = false;
  static constexpr bool kInteger = std::is_same_v<C, std::int64_t>;
  using Total = std::conditional_t<kInteger, std::int64_t, double>;
  static C start() { return 0; }
  static C map(C value, C) { return value; }
  static C fold(C a, C b) {
    if constexpr (kInteger) {
      return wrapping_add(a, b);
    } else {
      return a + b;
    }
  }
  static Total join(Total a, Total b) { return Sum<Total>::fold(a, b); }
  /// fold() and join() of vectors; whole numbers wrap.
  template <typename V>
  [[gnu::always_inline]] static V fold_lanes(V a, V b) {
    return a + b;
  }
  template <typename V>
  [[gnu::always_inline]] static V join_lanes(V a, V b) {
    return a + b;
  }
  static C finish(Total total, C, double divisor) {
    if constexpr (kInteger) {
      return total;
    } else {
      return static_cast<C>(total / divisor);
    }
  }
};

template <typename C>
struct SquaredDifference : Sum<C> {
  static constexpr bool kMaps = true;
  static C map(C value, C about) { return (value - about) * (value - about); }
  template <typename V>
  [[gnu::always_inline]] static V map_lanes(V value, V about) {
    return (value - about) * (value - about);
  }
};

template <typename C>
struct LogSumExp : Sum<C> {
  static constexpr bool kMaps = true;
  static constexpr bool kLogarithm = true;
  static C shift(C about) { return std::isfinite(about) ? about : C(0); }
  static C map(C value, C about) { return math::exp(value - about); }
  static C finish(double total, C about, double) {
    return static_cast<C>(static_cast<double>(about) + math::log(total));
  }
};

template <typename C>
struct Max {
  static constexpr bool kMaps = false;
  using Total = C;
  static C start() {
    return std::numeric_limits<C>::has_infinity ? -std::numeric_limits<C>::infinity()
                                                : std::numeric_limits<C>::lowest();
  }
  static C map(C value, C) { return value; }
  static C fold(C a, C b) { return (b > a) | (b != b) ? b : a; }
  template <typename V>
  [[gnu::always_inline]] static V fold_lanes(V a, V b) {
    return (b != b) ? b : (b > a ? b : a);
  }
  template <typename V>
  [[gnu::always_inline]] static V join_lanes(V a, V b) {
    return fold_lanes(a, b);
  }
  static C join(C a, C b) { return fold(a, b); }
  static C finish(C total, C, double) { return total; }
};

template <typename C>
struct Min : Max<C> {
  static C start() {
    return std::numeric_limits<C>::has_infinity ? std::numeric_limits<C>::infinity() : std::numeric_limits<C>::max();
  }
  static C fold(C a, C b) { return (b < a) | (b != b) ? b : a; }
  template <typename V>
  [[gnu::always_inline]] static V fold_lanes(V a, V b) {
    return (b != b) ? b : (b < a ? b : a);
  }
  template <typename V>
  [[gnu::always_inline]] static V join_lanes(V a, V b) {
    return fold_lanes(a, b);
  }
  static C join(C a, C b) { return fold(a, b); }
};

/// 32 bytes of lanes.
template <typename E>
struct Vector {
  static constexpr int kLanes = 32 / sizeof(E);
  typedef E Type __attribute__((vector_size(32)));

  [[gnu::always_inline]] static Type all(E value) {
    Type v{};  // Every lane is written below, which GCC does not see at -O1.
    for (int lane = 0; lane < kLanes; ++lane) v[lane] = value;
    return v;
  }
  [[gnu::always_inline]] static Type load(const E* from) {
    Type v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
};

/// Four floats as doubles. The compiler's own conversion of more than two goes through memory.
typedef float Vec4 __attribute__((vector_size(16)));
[[gnu::always_inline]] inline Vector<double>::Type widened(Vec4 v) {
#if defined(__AVX__)
  return _mm256_cvtps_pd(v);
#else
  return __builtin_convertvector(v, Vector<double>::Type);
#endif
}

/// Up to four vectors as one of totals. Of fewer than four the others would hold what changes nothing.
template <typename R, typename C, int kVectors>
[[gnu::always_inline]] inline typename Vector<typename R::Total>::Type join_vectors(
    const typename Vector<C>::Type (&v)[kVectors]) {
  using Wide = typename Vector<typename R::Total>::Type;
  Wide w[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    if constexpr (std::is_same_v<typename R::Total, C>) {
      w[i] = v[i];
    } else {
      static_assert(Vector<C>::kLanes == 8);
      w[i] = R::join_lanes(widened(__builtin_shufflevector(v[i], v[i], 0, 1, 2, 3)),
                           widened(__builtin_shufflevector(v[i], v[i], 4, 5, 6, 7)));
    }
  }
  if constexpr (kVectors == 1) return w[0];
  if constexpr (kVectors == 2) return R::join_lanes(w[0], w[1]);
  if constexpr (kVectors == 3) return R::join_lanes(R::join_lanes(w[0], w[2]), w[1]);
  if constexpr (kVectors == 4) return R::join_lanes(R::join_lanes(w[0], w[2]), R::join_lanes(w[1], w[3]));
}

/// The lanes of a vector together: the upper half is joined to the lower one, until one is left.
template <typename R>
[[gnu::always_inline]] inline typename R::Total join_lanes(typename Vector<typename R::Total>::Type t) {
  if constexpr (Vector<typename R::Total>::kLanes == 8) {
    t = R::join_lanes(t, __builtin_shufflevector(t, t, 4, 5, 6, 7, 0, 1, 2, 3));
    t = R::join_lanes(t, __builtin_shufflevector(t, t, 2, 3, 0, 1, 6, 7, 4, 5));
    t = R::join_lanes(t, __builtin_shufflevector(t, t, 1, 0, 3, 2, 5, 4, 7, 6));
  } else {
    t = R::join_lanes(t, __builtin_shufflevector(t, t, 2, 3, 0, 1));
    t = R::join_lanes(t, __builtin_shufflevector(t, t, 1, 0, 3, 2));
  }
  return t[0];
}
/// The same for as many vectors as one has lanes: lane i is what join_lanes() makes of v[i].
template <typename R>
[[gnu::always_inline]] inline typename Vector<typename R::Total>::Type join_rows(
    const typename Vector<typename R::Total>::Type (&v)[Vector<typename R::Total>::kLanes]) {
  using V = typename Vector<typename R::Total>::Type;
  if constexpr (Vector<typename R::Total>::kLanes == 8) {
    V half[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      half[i] = R::join_lanes(__builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11),
                              __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    V quarter[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
      quarter[i] = R::join_lanes(__builtin_shufflevector(half[i], half[i + 2], 0, 1, 8, 9, 4, 5, 12, 13),
                                 __builtin_shufflevector(half[i], half[i + 2], 2, 3, 10, 11, 6, 7, 14, 15));
    return R::join_lanes(__builtin_shufflevector(quarter[0], quarter[1], 0, 8, 2, 10, 4, 12, 6, 14),
                         __builtin_shufflevector(quarter[0], quarter[1], 1, 9, 3, 11, 5, 13, 7, 15));
  } else {
    V half[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
      half[i] = R::join_lanes(__builtin_shufflevector(v[i], v[i + 2], 0, 1, 4, 5),
                              __builtin_shufflevector(v[i], v[i + 2], 2, 3, 6, 7));
    return R::join_lanes(__builtin_shufflevector(half[0], half[1], 0, 4, 2, 6),
                         __builtin_shufflevector(half[0], half[1], 1, 5, 3, 7));
  }
}

/// `count` elements, at most a vector's, and zeros beside them.
template <typename E>
[[gnu::always_inline]] inline typename Vector<E>::Type load_some(const E* from, std::int64_t count) {
  using V = typename Vector<E>::Type;
#if defined(__AVX2__)
  if constexpr (sizeof(E) == 4) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
    return reinterpret_cast<V>(_mm256_maskload_epi32(reinterpret_cast<const int*>(from), mask));
  } else {
    const __m256i mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
    return reinterpret_cast<V>(_mm256_maskload_epi64(reinterpret_cast<const long long*>(from), mask));
  }
#else
  E values[Vector<E>::kLanes] = {};
  for (std::int64_t lane = 0; lane < count; ++lane) values[lane] = from[lane];
  return Vector<E>::load(values);
#endif
}
/// The first `count` lanes of v, and `filler` in the others.
template <typename E>
[[gnu::always_inline]] inline typename Vector<E>::Type first_lanes(typename Vector<E>::Type v, std::int64_t count,
                                                                   E filler) {
  typedef std::conditional_t<sizeof(E) == 4, std::int32_t, std::int64_t> Int __attribute__((vector_size(32)));
  Int lane;
  for (int i = 0; i < Vector<E>::kLanes; ++i) lane[i] = i;
  const Int bound = lane - lane + static_cast<std::conditional_t<sizeof(E) == 4, std::int32_t, std::int64_t>>(count);
  return lane < bound ? v : Vector<E>::all(filler);
}

/// Four vectors take terms in turn. The last terms are completed with what changes nothing.
template <typename R, typename C>
[[gnu::always_inline]] inline typename R::Total fold_chunk(const C* values, std::int64_t count) {
  using V = Vector<C>;
  const typename V::Type start = V::all(R::start());
  if (count <= V::kLanes) {  // the other vectors would change nothing
    const typename V::Type few[1] = {R::fold_lanes(start, first_lanes<C>(load_some(values, count), count, R::start()))};
    return join_lanes<R>(join_vectors<R, C, 1>(few));
  }
  typename V::Type lanes[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) lanes[i] = start;
  std::int64_t at = 0;
  for (; at + 4 * V::kLanes <= count; at += 4 * V::kLanes)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) lanes[i] = R::fold_lanes(lanes[i], V::load(values + at + i * V::kLanes));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i, at += V::kLanes) {
    if (at + V::kLanes <= count) {
      lanes[i] = R::fold_lanes(lanes[i], V::load(values + at));
    } else if (at < count) {
      const std::int64_t left = count - at;
      lanes[i] = R::fold_lanes(lanes[i], first_lanes<C>(load_some(values + at, left), left, R::start()));
    }
  }
  return join_lanes<R>(join_vectors<R, C, 4>(lanes));
}

}  // namespace lockstep::reduce_fold
