#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

/// Calls line(first, step) for each of the lines along the middle dimension.
template <typename F>
void for_each_line(const Tensor& x, F&& line) {
  const std::int64_t outer = x.size(0), length = x.size(1), inner = x.size(2);
  parallel_for(outer * inner, std::max<std::int64_t>(1, cpu::kElementBlock / length),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) line(i / inner * length * inner + i % inner, inner);
               });
}

}  // namespace

void running_extreme_cpu(bool largest, const Tensor& x, const Tensor& indices) {
  const std::int64_t length = x.size(1);
  dispatch_all(x.dtype(), "cummax", [&]<typename T>() {
    using C = compute_t<T>;
    const T* values = x.data<T>();
    std::int64_t* places = indices.data<std::int64_t>();
    for_each_line(x, [&](std::int64_t first, std::int64_t step) {
      C best = static_cast<C>(values[first]);
      std::int64_t place = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        const C at = static_cast<C>(values[first + i * step]);
        if (at != at || (best == best && (largest ? at >= best : at <= best))) {
          best = at;
          place = i;
        }
        places[first + i * step] = place;
      }
    });
  });
}

void logcumsumexp_cpu(const Tensor& x, const Tensor& out, bool reverse) {
  const std::int64_t length = x.size(1);
  dispatch_floating(x.dtype(), "logcumsumexp", [&]<typename T>() {
    using C = compute_t<T>;
    const T* values = x.data<T>();
    T* results = out.data<T>();
    for_each_line(x, [&](std::int64_t first, std::int64_t step) {
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
