#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/double_math_lines.h"
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

constexpr std::int64_t kTogether = 16;  // lines whose sums a step of logcumsumexp() goes on with

/// log(exp(sum) + exp(value))
double log_of_two(double sum, double value) {
  const bool takes = value > sum || value != value;
  const double high = takes ? value : sum, low = takes ? sum : value;
  // Of two equal infinities the difference is not a number.
  return high == low && std::isinf(high) ? high : high + math::log1p_any(math::exp(low - high));
}

/// The same of kTogether lines, by vectors where no difference is so large that exp() vanishes or is not a number.
[[gnu::always_inline]] inline void add_to_logs(const double* values, double* sums) {
  double high[kTogether], below[kTogether];
  int far = 0;
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < kTogether; ++i) {
    high[i] = values[i] > sums[i] ? values[i] : sums[i];
    below[i] = std::fabs(values[i] - sums[i]);
    far |= math::lines::is_near_exp(below[i]) ? 0 : 1;
  }
  if (far != 0) {
    for (std::int64_t i = 0; i < kTogether; ++i) sums[i] = log_of_two(sums[i], values[i]);
    return;
  }
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < kTogether; ++i) sums[i] = high[i] + math::lines::log_of_one_and_exp(below[i]);
}

/// `count` lines of `length` elements, `step` apart, that begin `apart` from each other. Each waits for its last sum,
/// so they are gone through together.
template <typename T>
void sum_logs(const T* x, T* out, std::int64_t count, std::int64_t apart, std::int64_t length, std::int64_t step) {
  cpu::by_widest_vectors([=] {
    constexpr std::int64_t kFew = 4;  // lines that are faster one after the other
    for (std::int64_t i = 0; count < kFew && i < count; ++i) {
      double sum = -std::numeric_limits<double>::infinity();
      for (std::int64_t at = i * apart, left = length; left > 0; at += step, --left)
        out[at] = static_cast<T>(sum = log_of_two(sum, static_cast<double>(x[at])));
    }
    if (count < kFew) return;
    double sums[kTogether] = {}, values[kTogether] = {};
    for (std::int64_t i = 0; i < count; ++i) sums[i] = -std::numeric_limits<double>::infinity();
    for (std::int64_t at = 0; at < length; ++at) {
      for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<double>(x[i * apart + at * step]);
      add_to_logs(values, sums);
      for (std::int64_t i = 0; i < count; ++i) out[i * apart + at * step] = static_cast<T>(sums[i]);
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
  const std::int64_t outer = x.size(0), length = x.size(1), inner = x.size(2);
  const std::int64_t first = reverse ? (length - 1) * inner : 0, step = reverse ? -inner : inner;
  dispatch_floating(x.dtype(), "logcumsumexp", [&]<typename T>() {
    const T* const values = x.data<T>();
    T* const results = out.data<T>();
    parallel_for(outer * inner, std::max<std::int64_t>(1, cpu::kElementBlock / length),
                 [&](std::int64_t i, std::int64_t end) {
                   while (i < end) {
                     const std::int64_t at = i / inner * length * inner + i % inner + first;
                     const std::int64_t most = inner == 1 ? end - i : std::min(inner - i % inner, end - i);
                     const std::int64_t count = std::min(kTogether, most);
                     sum_logs(values + at, results + at, count, inner == 1 ? length : 1, length, step);
                     i += count;
                   }
                 });
  });
}

}  // namespace lockstep
