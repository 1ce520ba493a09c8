#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

/// Slices that are gone through together: each step waits for the one before it, so one slice alone leaves the
/// processor idle.
constexpr std::int64_t kMostLanes = 64;

/// The sums or products of one slice, which stay in a register.
template <Scan kScan, typename T>
void scan_one(const T* x, T* out, std::int64_t length, std::int64_t step) {
  using C = scan_t<T>;
  C value = kScan == Scan::sum ? C(0) : C(1);
  for (std::int64_t i = 0; i < length; ++i) {
    const C at = static_cast<C>(x[i * step]);
    value = kScan == Scan::sum ? value + at : value * at;
    out[i * step] = static_cast<T>(value);
  }
}

/// The same for the first elements of eight slices that begin `lane_step` apart, whose elements are neighbours (step is
/// 1 or -1): squares of eight elements each are turned, so that a vector has one of each. Returns how many elements of
/// each that were, and leaves their sums in `values`.
template <Scan kScan>
std::int64_t scan_eight(const float* x, float* out, std::int64_t lane_step, std::int64_t length, std::int64_t step,
                        double* values) {
  constexpr std::int64_t kSide = cpu::kLanes;
  typedef double DoubleVec8 __attribute__((vector_size(64)));
  DoubleVec8 sums;
  std::memcpy(&sums, values, sizeof sums);
  std::int64_t i = 0;
  for (; i + kSide <= length; i += kSide) {
    const std::int64_t at = step > 0 ? i : -(i + kSide - 1);
    cpu::Vec8 m[kSide];
    for (std::int64_t r = 0; r < kSide; ++r) m[r] = cpu::load8(x + r * lane_step + at);
    cpu::transpose8(m);
    const auto next = [&](cpu::Vec8& column) {
      const DoubleVec8 at_column = __builtin_convertvector(column, DoubleVec8);
      sums = kScan == Scan::sum ? sums + at_column : sums * at_column;
      column = __builtin_convertvector(sums, cpu::Vec8);
    };
    if (step > 0)
      for (int c = 0; c < kSide; ++c) next(m[c]);
    else
      for (int c = kSide - 1; c >= 0; --c) next(m[c]);
    cpu::transpose8(m);
    for (std::int64_t r = 0; r < kSide; ++r) cpu::store8(out + r * lane_step + at, m[r]);
  }
  std::memcpy(values, &sums, sizeof sums);
  return i;
}

/// `lanes` slices of `length` elements, `step` apart; the slices begin `lane_step` apart. kDense: that is 1.
template <Scan kScan, bool kDense, typename T>
void scan_lanes(const T* x, const T* y, T* out, std::int64_t lanes, std::int64_t lane_step, std::int64_t length,
                std::int64_t step) {
  using C = scan_t<T>;
  const std::int64_t apart = kDense ? 1 : lane_step;
  C values[kMostLanes];
  std::fill_n(values, lanes, kScan == Scan::sum || kScan == Scan::recurrence ? C(0) : C(1));
  std::int64_t i = 0;
  if constexpr (kScan == Scan::sum || kScan == Scan::product) {
    if (lanes == 1) return scan_one<kScan>(x, out, length, step);
    if constexpr (!kDense && std::is_same_v<T, float>)
      if (lanes == cpu::kLanes && (step == 1 || step == -1))
        i = scan_eight<kScan>(x, out, lane_step, length, step, values);
  }
  for (; i < length; ++i) {
    const T* from = x + i * step;
    const T* factors = kScan == Scan::recurrence && i > 0 ? y + (i - 1) * step : nullptr;
    T* to = out + i * step;
    LOCKSTEP_VECTORIZE
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const C at = static_cast<C>(from[lane * apart]);
      if constexpr (kScan == Scan::product_before) to[lane * apart] = static_cast<T>(values[lane]);
      if constexpr (kScan == Scan::sum) {
        values[lane] = values[lane] + at;
      } else if constexpr (kScan == Scan::recurrence) {
        const C factor = factors ? static_cast<C>(factors[lane * apart]) : C(0);
        values[lane] = factor == C(0) ? at : at + factor * values[lane];
      } else {
        values[lane] = values[lane] * at;
      }
      if constexpr (kScan != Scan::product_before) to[lane * apart] = static_cast<T>(values[lane]);
    }
  }
}

template <Scan kScan, typename T>
void run(const Tensor& x, const Tensor& y, const Tensor& out, bool reverse) {
  const std::int64_t outer = x.size(0), length = x.size(1), inner = x.size(2);
  const std::int64_t first = reverse ? (length - 1) * inner : 0, step = reverse ? -inner : inner;
  const T* from = x.data<T>();
  const T* other = y.defined() ? y.data<T>() : nullptr;
  T* to = out.data<T>();
  constexpr std::int64_t kRows = 8;  // slices that lie apart: a line of the cache for each
  parallel_for(outer * inner, std::max<std::int64_t>(1, cpu::kElementBlock / length),
               [&](std::int64_t i, std::int64_t end) {
                 while (i < end) {
                   const std::int64_t at = i / inner * length * inner + i % inner + first;
                   const T* factors = other ? other + at : nullptr;
                   std::int64_t lanes = 0;
                   if (inner > 1) {
                     lanes = std::min({kMostLanes, inner - i % inner, end - i});
                     scan_lanes<kScan, true>(from + at, factors, to + at, lanes, 1, length, step);
                   } else {
                     lanes = std::min(kRows, end - i);
                     scan_lanes<kScan, false>(from + at, factors, to + at, lanes, length, length, step);
                   }
                   i += lanes;
                 }
               });
}

template <typename T>
void run_any(Scan scan, const Tensor& x, const Tensor& y, const Tensor& out, bool reverse) {
  switch (scan) {
    case Scan::sum:
      return run<Scan::sum, T>(x, y, out, reverse);
    case Scan::product:
      return run<Scan::product, T>(x, y, out, reverse);
    case Scan::product_before:
      return run<Scan::product_before, T>(x, y, out, reverse);
    case Scan::recurrence:
      return run<Scan::recurrence, T>(x, y, out, reverse);
  }
}

}  // namespace

void scan_cpu(Scan scan, const Tensor& x, const Tensor& y, const Tensor& out, bool reverse) {
  if (x.dtype() == kInt64) return run_any<std::int64_t>(scan, x, y, out, reverse);
  dispatch_floating(x.dtype(), "cumsum", [&]<typename T>() { run_any<T>(scan, x, y, out, reverse); });
}

}  // namespace lockstep
