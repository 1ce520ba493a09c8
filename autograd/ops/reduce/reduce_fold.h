#pragma once

// How the terms of a reduction meet on the CPU, and in which order those that are neighbours do. For .cpp files only.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

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
};

template <typename C>
struct LogSumExp : Sum<C> {
  static constexpr bool kMaps = true;
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
    return ((b > a) | (b != b)) ? b : a;
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
    return ((b < a) | (b != b)) ? b : a;
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
    Type v;
    for (int lane = 0; lane < kLanes; ++lane) v[lane] = value;
    return v;
  }
  [[gnu::always_inline]] static Type load(const E* from) {
    Type v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
};

/// The lanes of four vectors together: the upper half is joined to the lower one, until one is left.
template <typename R, typename C>
[[gnu::always_inline]] inline typename R::Total join_lanes(const typename Vector<C>::Type (&v)[4]) {
  if constexpr (std::is_same_v<typename R::Total, C>) {
    auto t = R::join_lanes(R::join_lanes(v[0], v[2]), R::join_lanes(v[1], v[3]));
    if constexpr (Vector<C>::kLanes == 8) {
      t = R::join_lanes(t, __builtin_shufflevector(t, t, 4, 5, 6, 7, 0, 1, 2, 3));
      t = R::join_lanes(t, __builtin_shufflevector(t, t, 2, 3, 0, 1, 6, 7, 4, 5));
      t = R::join_lanes(t, __builtin_shufflevector(t, t, 1, 0, 3, 2, 5, 4, 7, 6));
    } else {
      t = R::join_lanes(t, __builtin_shufflevector(t, t, 2, 3, 0, 1));
      t = R::join_lanes(t, __builtin_shufflevector(t, t, 1, 0, 3, 2));
    }
    return t[0];
  } else {
    static_assert(Vector<C>::kLanes == 8);
    using Wide = typename Vector<typename R::Total>::Type;
    Wide w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      w[i] = R::join_lanes(__builtin_convertvector(__builtin_shufflevector(v[i], v[i], 0, 1, 2, 3), Wide),
                           __builtin_convertvector(__builtin_shufflevector(v[i], v[i], 4, 5, 6, 7), Wide));
    return join_lanes<R, typename R::Total>(w);
  }
}

/// Four vectors take terms in turn. The last terms are completed with what changes nothing.
template <typename R, typename C>
[[gnu::always_inline]] inline typename R::Total fold_chunk(const C* values, std::int64_t count) {
  using V = Vector<C>;
  typename V::Type lanes[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) lanes[i] = V::all(R::start());
  std::int64_t at = 0;
  for (; at + 4 * V::kLanes <= count; at += 4 * V::kLanes)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) lanes[i] = R::fold_lanes(lanes[i], V::load(values + at + i * V::kLanes));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i, at += V::kLanes) {
    if (at + V::kLanes <= count) {
      lanes[i] = R::fold_lanes(lanes[i], V::load(values + at));
    } else if (at < count) {
      C last[V::kLanes];
      for (int lane = 0; lane < V::kLanes; ++lane) last[lane] = at + lane < count ? values[at + lane] : R::start();
      lanes[i] = R::fold_lanes(lanes[i], V::load(last));
    }
  }
  return join_lanes<R, C>(lanes);
}

}  // namespace lockstep::reduce_fold
