#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

/// Calls lines(first, count, step) for the lines along the middle dimension: for up to `most` neighbours at a time, of
/// which the first begins at `first`, and whose elements are `step` apart.
template <typename F>
void for_each_lines(const Tensor& x, std::int64_t most, F&& lines) {
  const std::int64_t outer = x.size(0), length = x.size(1), inner = x.size(2);
  parallel_for(outer * inner, std::max<std::int64_t>(1, cpu::kElementBlock / length),
               [&](std::int64_t i, std::int64_t end) {
                 while (i < end) {
                   const std::int64_t count = std::min({most, inner - i % inner, end - i});
                   lines(i / inner * length * inner + i % inner, count, inner);
                   i += count;
                 }
               });
}

/// Whether `at` takes the place of `best`: a NaN does, and stays for all numbers.
template <bool kLargest, typename C>
bool takes_over(C at, C best) {
  return (kLargest ? at >= best : at <= best) | (at != at);
}

template <bool kLargest, typename T>
void running_extremes(const Tensor& x, const Tensor& values, const Tensor& indices) {
  using C = compute_t<T>;
  constexpr std::int64_t kLanes = 64;
  const std::int64_t length = x.size(1);
  for_each_lines(x, kLanes, [&](std::int64_t first, std::int64_t count, std::int64_t step) {
    const T* from = x.data<T>() + first;
    T* to = values.data<T>() + first;
    std::int64_t* places = indices.data<std::int64_t>() + first;
    if (count == 1) {  // with a branch, since few elements of a long line take over
      C best = static_cast<C>(*from);
      std::int64_t place = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        const C at = static_cast<C>(from[i * step]);
        if (takes_over<kLargest>(at, best)) best = at, place = i;
        to[i * step] = static_cast<T>(best);
        places[i * step] = place;
      }
      return;
    }
    C best[kLanes];
    std::int64_t place[kLanes] = {};
    for (std::int64_t j = 0; j < count; ++j) best[j] = static_cast<C>(from[j]);
    for (std::int64_t i = 0; i < length; ++i, from += step, to += step, places += step) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t j = 0; j < count; ++j) {
        const C at = static_cast<C>(from[j]);
        const bool takes = takes_over<kLargest>(at, best[j]);
        best[j] = takes ? at : best[j];
        place[j] = takes ? i : place[j];
        to[j] = static_cast<T>(best[j]);
        places[j] = place[j];
      }
    }
  });
}

}  // namespace

void running_extreme_cpu(bool largest, const Tensor& x, const Tensor& values, const Tensor& indices) {
  dispatch_all(x.dtype(), largest ? "cummax" : "cummin", [&]<typename T>() {
    if (largest)
      running_extremes<true, T>(x, values, indices);
    else
      running_extremes<false, T>(x, values, indices);
  });
}

void logcumsumexp_cpu(const Tensor& x, const Tensor& out, bool reverse) {
  const std::int64_t length = x.size(1);
  dispatch_floating(x.dtype(), "logcumsumexp", [&]<typename T>() {
    using C = scan_t<T>;
    const T* values = x.data<T>();
    T* results = out.data<T>();
    for_each_lines(x, 1, [&](std::int64_t first, std::int64_t, std::int64_t step) {
      C sum = -std::numeric_limits<C>::infinity();
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t at = first + (reverse ? length - 1 - i : i) * step;
        const C value = static_cast<C>(values[at]);
        const C high = value > sum || value != value ? value : sum, low = value > sum || value != value ? sum : value;
        // Of two equal infinities the difference is not a number.
        sum = high == low && std::isinf(high) ? high : high + math::log1p_any(math::exp(low - high));
        results[at] = static_cast<T>(sum);
      }
    });
  });
}

}  // namespace lockstep
