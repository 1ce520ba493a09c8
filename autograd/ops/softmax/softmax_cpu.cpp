#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/softmax/softmax_kernels.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {

namespace {

using cpu::lane_max;
using cpu::lane_sum;

constexpr std::int64_t kBlock = 4096;  // elements to a task: exp costs more than an addition
constexpr std::int64_t kTile = 1024;   // elements that exp runs over at once, so that short rows are vectorised too
constexpr std::int64_t kColumns = 64;  // neighbouring slices handled together where inner > 1

std::int64_t at_least_one(std::int64_t n) {
  return std::max<std::int64_t>(n, 1);
}

/// exp() of values that are not positive.
template <typename C>
void exp_all(C* y, std::int64_t count) {
  if constexpr (std::is_same_v<C, double>) {
    if (math::lines::all_near(count, [y](std::int64_t i) { return math::lines::is_near_exp(y[i]); }))
      return cpu::write_row(
          y, count, [y](std::int64_t i) __attribute__((always_inline)) { return math::lines::exp_of_near(y[i], 0); });
  }
  cpu::write_row(y, count, [y](std::int64_t i) { return math::exp_to_one(y[i]); });
}

/// log() of sums of exponentials, of which the largest is 1.
template <typename C>
void log_all(C* y, std::int64_t count) {
  if constexpr (std::is_same_v<C, double>) {
    if (math::lines::all_near(count, [y](std::int64_t i) { return math::lines::is_near_log(y[i]); }))
      return cpu::write_row(
          y, count, [y](std::int64_t i) __attribute__((always_inline)) { return math::lines::log_of_near(y[i]); });
  }
  cpu::write_row(y, count, [y](std::int64_t i) { return math::log(y[i]); });
}

/// log_softmax of rows whose values are y less their largest: o may be y. Short rows are gone through together.
template <typename C, typename T>
void finish_log_rows(const C* y, std::int64_t rows, std::int64_t length, T* o) {
  C powers[kTile], sums[kTile];
  for (std::int64_t i = 0; i < rows * length; ++i) powers[i] = y[i];
  exp_all(powers, rows * length);
  for (std::int64_t r = 0; r < rows; ++r) {
    const C* row = powers + r * length;
    sums[r] = lane_sum<C>(length, [row](std::int64_t i) { return row[i]; });
  }
  log_all(sums, rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const C shift = sums[r];
    for (std::int64_t i = r * length; i < (r + 1) * length; ++i) o[i] = static_cast<T>(y[i] - shift);
  }
}

template <typename T>
void rows_forward(const T* input, T* output, std::int64_t rows, std::int64_t length, bool log) {
  using C = compute_t<T>;
  const std::int64_t tile = at_least_one(kTile / length);
  parallel_for(rows, at_least_one(kBlock / length), [&](std::int64_t begin, std::int64_t end) {
    std::vector<C> scratch;
    if constexpr (!std::is_same_v<T, C>) scratch.resize(static_cast<std::size_t>(std::min(tile, end - begin) * length));
    for (std::int64_t row = begin; row < end; row += tile) {
      const std::int64_t count = std::min(tile, end - row);
      const T* x = input + row * length;
      T* out = output + row * length;
      C* y;
      if constexpr (std::is_same_v<T, C>) {
        y = out;
      } else {
        y = scratch.data();
      }
      for (std::int64_t r = 0; r < count; ++r) {
        const C top = lane_max<C>(length, x + r * length);
        for (std::int64_t i = r * length; i < (r + 1) * length; ++i) y[i] = static_cast<C>(x[i]) - top;
      }
      if (log && length <= kTile) {
        finish_log_rows<C>(static_cast<const C*>(y), count, length, out);
        continue;
      }
      if (!log) exp_all(y, count * length);
      for (std::int64_t r = 0; r < count; ++r) {
        const C* yr = y + r * length;
        T* o = out + r * length;
        if (log) {
          const C shift = math::log(cpu::by_widest_vectors(
              [=] { return lane_sum<C>(length, [=](std::int64_t i) { return math::exp_to_one(yr[i]); }); }));
          for (std::int64_t i = 0; i < length; ++i) o[i] = static_cast<T>(yr[i] - shift);
        } else {
          const C sum = lane_sum<C>(length, [&](std::int64_t i) { return yr[i]; });
          for (std::int64_t i = 0; i < length; ++i) o[i] = static_cast<T>(yr[i] / sum);
        }
      }
    }
  });
}

template <typename T>
void rows_backward(const T* grad, const T* output, T* grad_input, std::int64_t rows, std::int64_t length, bool log) {
  using C = compute_t<T>;
  parallel_for(rows, at_least_one(kBlock / length), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* g = grad + row * length;
      const T* y = output + row * length;
      T* d = grad_input + row * length;
      if (log) {
        const C sum = lane_sum<C>(length, [&](std::int64_t i) { return static_cast<C>(g[i]); });
        for (std::int64_t i = 0; i < length; ++i)
          d[i] = static_cast<T>(std::fma(-math::exp_to_one(static_cast<C>(y[i])), sum, static_cast<C>(g[i])));
      } else {
        const C dot = lane_sum<C>(length, [&](std::int64_t i) { return static_cast<C>(g[i]) * static_cast<C>(y[i]); });
        for (std::int64_t i = 0; i < length; ++i)
          d[i] = static_cast<T>(static_cast<C>(y[i]) * (static_cast<C>(g[i]) - dot));
      }
    }
  });
}

/// Calls body(offset, width) for groups of up to kColumns neighbouring slices; element i of slice j is at
/// offset + i * inner + j.
template <typename Body>
void for_each_column_group(const SoftmaxSlices& s, Body&& body) {
  const std::int64_t groups = (s.inner + kColumns - 1) / kColumns;
  const std::int64_t block = at_least_one(kBlock / (s.length * std::min(s.inner, kColumns)));
  parallel_for(s.outer * groups, block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t column = item % groups * kColumns;
      body(item / groups * s.length * s.inner + column, std::min(kColumns, s.inner - column));
    }
  });
}

/// One element of each of `width` neighbouring slices: exp(x - top), added to sum. Where y holds them (of type C), they
/// are kept there. Flattened: a call in the loop would keep it from being vectorised.
template <typename C, typename T>
[[gnu::flatten, gnu::noinline]] void exp_row(const T* x, const C* top, std::int64_t width, C* sum, T* y) {
  if constexpr (std::is_same_v<T, C>) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j) {
      y[j] = math::exp_to_one(x[j] - top[j]);
      sum[j] += y[j];
    }
  } else {
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j) sum[j] += math::exp_to_one(static_cast<C>(x[j]) - top[j]);
  }
}
template <typename C, typename T>
[[gnu::flatten, gnu::noinline]] void softmax_row(const T* x, const C* top, const C* sum, std::int64_t width, bool log,
                                                 T* y) {
  if (log) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j) y[j] = static_cast<T>(static_cast<C>(x[j]) - top[j] - sum[j]);
  } else if constexpr (std::is_same_v<T, C>) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j) y[j] = y[j] / sum[j];
  } else {
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j)
      y[j] = static_cast<T>(math::exp_to_one(static_cast<C>(x[j]) - top[j]) / sum[j]);
  }
}
/// Gradients of log_softmax for one element of each slice.
template <typename C, typename T>
[[gnu::flatten, gnu::noinline]] void log_gradient_row(const T* g, const T* y, const C* sum, std::int64_t width, T* d) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = 0; j < width; ++j)
    d[j] = static_cast<T>(std::fma(-math::exp_to_one(static_cast<C>(y[j])), sum[j], static_cast<C>(g[j])));
}

template <typename T>
void columns_forward(const T* input, T* output, const SoftmaxSlices& s, bool log) {
  using C = compute_t<T>;
  for_each_column_group(s, [&](std::int64_t offset, std::int64_t width) {
    C top[kColumns], sum[kColumns];
    const T* x = input + offset;
    T* y = output + offset;
    for (std::int64_t j = 0; j < width; ++j) {
      top[j] = static_cast<C>(x[j]);
      sum[j] = 0;
    }
    for (std::int64_t i = 1; i < s.length; ++i)
      for (std::int64_t j = 0; j < width; ++j) {
        const C value = static_cast<C>(x[i * s.inner + j]);
        top[j] = value > top[j] ? value : top[j];
      }
    for (std::int64_t i = 0; i < s.length; ++i) exp_row<C>(x + i * s.inner, top, width, sum, y + i * s.inner);
    if (log)
      for (std::int64_t j = 0; j < width; ++j) sum[j] = math::log(sum[j]);
    for (std::int64_t i = 0; i < s.length; ++i) softmax_row<C>(x + i * s.inner, top, sum, width, log, y + i * s.inner);
  });
}

template <typename T>
void columns_backward(const T* grad, const T* output, T* grad_input, const SoftmaxSlices& s, bool log) {
  using C = compute_t<T>;
  for_each_column_group(s, [&](std::int64_t offset, std::int64_t width) {
    C sum[kColumns] = {};
    const T* g = grad + offset;
    const T* y = output + offset;
    T* d = grad_input + offset;
    for (std::int64_t i = 0; i < s.length; ++i)
      for (std::int64_t j = 0; j < width; ++j) {
        const std::int64_t at = i * s.inner + j;
        sum[j] = std::fma(static_cast<C>(g[at]), log ? C(1) : static_cast<C>(y[at]), sum[j]);
      }
    for (std::int64_t i = 0; i < s.length; ++i) {
      if (log) {
        log_gradient_row<C>(g + i * s.inner, y + i * s.inner, sum, width, d + i * s.inner);
        continue;
      }
      for (std::int64_t j = 0; j < width; ++j) {
        const std::int64_t at = i * s.inner + j;
        const C value = static_cast<C>(y[at]);
        d[at] = static_cast<T>(value * (static_cast<C>(g[at]) - sum[j]));
      }
    }
  });
}

}  // namespace

void softmax_cpu(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log) {
  dispatch_floating(input.dtype(), "softmax", [&]<typename T>() {
    if (slices.inner == 1) {
      rows_forward<T>(input.data<T>(), output.data<T>(), slices.outer, slices.length, log);
    } else {
      columns_forward<T>(input.data<T>(), output.data<T>(), slices, log);
    }
  });
}

void softmax_backward_cpu(const Tensor& grad, const Tensor& output, const Tensor& grad_input, SoftmaxSlices slices,
                          bool log) {
  dispatch_floating(output.dtype(), "softmax", [&]<typename T>() {
    if (slices.inner == 1) {
      rows_backward<T>(grad.data<T>(), output.data<T>(), grad_input.data<T>(), slices.outer, slices.length, log);
    } else {
      columns_backward<T>(grad.data<T>(), output.data<T>(), grad_input.data<T>(), slices, log);
    }
  });
}

}  // namespace lockstep
