#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/softmax/softmax_kernels.h"
#include "lockstep/core/cpu/half_rows.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/elementwise_computation.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile.h"
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
template <typename C>
void finish_log_rows(const C* y, std::int64_t rows, std::int64_t length, C* o) {
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
    for (std::int64_t i = r * length; i < (r + 1) * length; ++i) o[i] = y[i] - shift;
  }
}

/// Rows of C; y may be x.
template <typename C>
void rows_of_softmax(const C* x, C* y, std::int64_t rows, std::int64_t length, bool log) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const C top = lane_max<C>(length, x + r * length);
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = r * length; i < (r + 1) * length; ++i) y[i] = x[i] - top;
  }
  if (log && length <= kTile) return finish_log_rows<C>(static_cast<const C*>(y), rows, length, y);
  if (!log) exp_all(y, rows * length);
  for (std::int64_t r = 0; r < rows; ++r) {
    C* yr = y + r * length;
    if (log) {
      const C shift = math::log(cpu::by_widest_vectors(
          [=] { return lane_sum<C>(length, [=](std::int64_t i) { return math::exp_to_one(yr[i]); }); }));
      for (std::int64_t i = 0; i < length; ++i) yr[i] = yr[i] - shift;
    } else {
      const C sum = lane_sum<C>(length, [&](std::int64_t i) { return yr[i]; });
      for (std::int64_t i = 0; i < length; ++i) yr[i] = yr[i] / sum;
    }
  }
}

template <typename T>
void rows_forward(const T* input, T* output, std::int64_t rows, std::int64_t length, bool log) {
  using C = compute_t<T>;
  const std::int64_t tile = at_least_one(kTile / length);
  parallel_for(rows, at_least_one(kBlock / length), [&](std::int64_t begin, std::int64_t end) {
    const auto for_each_tile = [&](auto body) {
      for (std::int64_t row = begin; row < end; row += tile)
        body(input + row * length, output + row * length, std::min(tile, end - row));
    };
    if constexpr (cpu::is_half<T>) {
      const Tensor room = empty({std::min(tile, end - begin) * length});
      float* const wide = room.data<float>();
      for_each_tile([&](const T* x, T* y, std::int64_t count) {
        cpu::widen_row(x, count * length, wide);
        rows_of_softmax<C>(wide, wide, count, length, log);
        cpu::narrow_row(wide, count * length, y);
      });
    } else {
      for_each_tile([&](const T* x, T* y, std::int64_t count) { rows_of_softmax<C>(x, y, count, length, log); });
    }
  });
}

/// The rows of a pending tensor, as its expression is computed.
template <typename C>
void rows_of_elements(const ElementReader& input, C* output, std::int64_t rows, std::int64_t length, bool log) {
  const std::int64_t tile = at_least_one(kTile / length);
  parallel_for(rows, at_least_one(kBlock / length), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; row += tile) {
      C* const y = output + row * length;
      const std::int64_t count = std::min(tile, end - row);
      rows_of_softmax<C>(input.values<C>(row * length, count * length, y), y, count, length, log);
    }
  });
}

/// The gradient of a row of C; d may be g.
template <typename C>
void gradient_of_row(const C* g, const C* y, C* d, std::int64_t length, bool log) {
  if (log) {
    const C sum = lane_sum<C>(length, [&](std::int64_t i) { return g[i]; });
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < length; ++i) d[i] = std::fma(-math::exp_to_one(y[i]), sum, g[i]);
  } else {
    const C dot = lane_sum<C>(length, [&](std::int64_t i) { return g[i] * y[i]; });
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < length; ++i) d[i] = y[i] * (g[i] - dot);
  }
}

template <typename T>
void rows_backward(const T* grad, const T* output, T* grad_input, std::int64_t rows, std::int64_t length, bool log) {
  using C = compute_t<T>;
  const std::int64_t tile = at_least_one(kTile / length);
  parallel_for(rows, at_least_one(kBlock / length), [&](std::int64_t begin, std::int64_t end) {
    const auto gradients = [&](const C* g, const C* y, C* d, std::int64_t count) {
      for (std::int64_t r = 0; r < count; ++r)
        gradient_of_row(g + r * length, y + r * length, d + r * length, length, log);
    };
    if constexpr (cpu::is_half<T>) {
      const std::int64_t most = std::min(tile, end - begin) * length;
      const Tensor room_g = empty({most}), room_y = empty({most});
      float *const g = room_g.data<float>(), *const y = room_y.data<float>();
      for (std::int64_t row = begin; row < end; row += tile) {
        const std::int64_t count = std::min(tile, end - row);
        cpu::widen_row(grad + row * length, count * length, g);
        cpu::widen_row(output + row * length, count * length, y);
        gradients(g, y, g, count);
        cpu::narrow_row(g, count * length, grad_input + row * length);
      }
    } else {
      gradients(grad + begin * length, output + begin * length, grad_input + begin * length, end - begin);
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

/// One element of each of `width` neighbouring slices: y = exp(x - top), added to sum. Flattened: a call in the loop
/// would keep it from being vectorised.
template <typename C>
[[gnu::flatten, gnu::noinline]] void exp_row(const C* x, const C* top, std::int64_t width, C* sum, C* y) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = 0; j < width; ++j) {
    y[j] = math::exp_to_one(x[j] - top[j]);
    sum[j] += y[j];
  }
}
template <typename C>
[[gnu::flatten, gnu::noinline]] void exp_sum_row(const C* x, const C* top, std::int64_t width, C* sum) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = 0; j < width; ++j) sum[j] += math::exp_to_one(x[j] - top[j]);
}
template <typename C>
[[gnu::flatten, gnu::noinline]] void divide_row(C* y, const C* sum, std::int64_t width) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = 0; j < width; ++j) y[j] = y[j] / sum[j];
}
template <typename C>
[[gnu::flatten, gnu::noinline]] void subtract_row(const C* x, const C* top, const C* sum, std::int64_t width, C* y) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = 0; j < width; ++j) y[j] = x[j] - top[j] - sum[j];
}
template <typename C>
[[gnu::flatten, gnu::noinline]] void add_gradient_row(const C* g, const C* y, std::int64_t width, bool log, C* sum) {
  if (log) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j) sum[j] = g[j] + sum[j];
  } else {
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j) sum[j] = std::fma(g[j], y[j], sum[j]);
  }
}
/// Gradients for one element of each slice, of softmax and of log_softmax.
template <typename C>
[[gnu::flatten, gnu::noinline]] void gradient_row(const C* g, const C* y, const C* sum, std::int64_t width, C* d) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = 0; j < width; ++j) d[j] = y[j] * (g[j] - sum[j]);
}
template <typename C>
[[gnu::flatten, gnu::noinline]] void log_gradient_row(const C* g, const C* y, const C* sum, std::int64_t width, C* d) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = 0; j < width; ++j) d[j] = std::fma(-math::exp_to_one(y[j]), sum[j], g[j]);
}

/// `width` neighbouring slices of C, whose elements lie `inner` apart; y may be x.
template <typename C>
void columns_of_softmax(const C* x, C* y, std::int64_t length, std::int64_t inner, std::int64_t width, bool log) {
  C top[kColumns], sum[kColumns];
  for (std::int64_t j = 0; j < width; ++j) {
    top[j] = x[j];
    sum[j] = 0;
  }
  for (std::int64_t i = 1; i < length; ++i)
    for (std::int64_t j = 0; j < width; ++j) {
      const C value = x[i * inner + j];
      top[j] = value > top[j] ? value : top[j];
    }
  if (log) {
    for (std::int64_t i = 0; i < length; ++i) exp_sum_row<C>(x + i * inner, top, width, sum);
    for (std::int64_t j = 0; j < width; ++j) sum[j] = math::log(sum[j]);
    for (std::int64_t i = 0; i < length; ++i) subtract_row<C>(x + i * inner, top, sum, width, y + i * inner);
    return;
  }
  for (std::int64_t i = 0; i < length; ++i) exp_row<C>(x + i * inner, top, width, sum, y + i * inner);
  for (std::int64_t i = 0; i < length; ++i) divide_row<C>(y + i * inner, sum, width);
}

/// Their gradients, from the results y; d may be g.
template <typename C>
void gradient_of_columns(const C* g, const C* y, C* d, std::int64_t length, std::int64_t inner, std::int64_t width,
                         bool log) {
  C sum[kColumns] = {};
  for (std::int64_t i = 0; i < length; ++i) add_gradient_row<C>(g + i * inner, y + i * inner, width, log, sum);
  for (std::int64_t i = 0; i < length; ++i)
    if (log)
      log_gradient_row<C>(g + i * inner, y + i * inner, sum, width, d + i * inner);
    else
      gradient_row<C>(g + i * inner, y + i * inner, sum, width, d + i * inner);
}

/// `length` rows of `width` elements, `inner` apart, to dense rows and back.
template <typename T>
void widen_columns(const T* x, std::int64_t length, std::int64_t inner, std::int64_t width, float* wide) {
  for (std::int64_t i = 0; i < length; ++i) cpu::widen_row(x + i * inner, width, wide + i * width);
}

template <typename T>
void narrow_columns(const float* wide, std::int64_t length, std::int64_t inner, std::int64_t width, T* y) {
  for (std::int64_t i = 0; i < length; ++i) cpu::narrow_row(wide + i * width, width, y + i * inner);
}

template <typename T>
void columns_forward(const T* input, T* output, const SoftmaxSlices& s, bool log) {
  using C = compute_t<T>;
  for_each_column_group(s, [&](std::int64_t offset, std::int64_t width) {
    if constexpr (cpu::is_half<T>) {
      const Tensor room = empty({s.length * width});
      float* const wide = room.data<float>();
      widen_columns(input + offset, s.length, s.inner, width, wide);
      columns_of_softmax<C>(wide, wide, s.length, width, width, log);
      narrow_columns(wide, s.length, s.inner, width, output + offset);
    } else {
      columns_of_softmax<C>(input + offset, output + offset, s.length, s.inner, width, log);
    }
  });
}

template <typename T>
void columns_backward(const T* grad, const T* output, T* grad_input, const SoftmaxSlices& s, bool log) {
  using C = compute_t<T>;
  for_each_column_group(s, [&](std::int64_t offset, std::int64_t width) {
    if constexpr (cpu::is_half<T>) {
      const Tensor room_g = empty({s.length * width}), room_y = empty({s.length * width});
      float *const g = room_g.data<float>(), *const y = room_y.data<float>();
      widen_columns(grad + offset, s.length, s.inner, width, g);
      widen_columns(output + offset, s.length, s.inner, width, y);
      gradient_of_columns<C>(g, y, g, s.length, width, width, log);
      narrow_columns(g, s.length, s.inner, width, grad_input + offset);
    } else {
      gradient_of_columns<C>(grad + offset, output + offset, grad_input + offset, s.length, s.inner, width, log);
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

bool softmax_elements(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log) {
  if (slices.inner != 1 || !is_pending_elementwise(input)) return false;
  return ElementReader::read(input, [&](const ElementReader& reader) {
    const profile::Scope scope("kernel", "softmax");
    const auto run = [&]<typename C>() {
      rows_of_elements<C>(reader, output.data<C>(), slices.outer, slices.length, log);
    };
    output.dtype() == kFloat64 ? run.operator()<double>() : run.operator()<float>();
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
