#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/layer_norm/layer_norm_eight_rows.h"
#include "lockstep/autograd/ops/layer_norm/layer_norm_kernels.h"
#include "lockstep/autograd/ops/layer_norm/layer_norm_moments.h"
#include "lockstep/autograd/ops/support/parameter_values.h"
#include "lockstep/core/cpu/half_rows.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"

namespace lockstep {

namespace {

using cpu::kElementBlock;
using cpu::long_sum;
using layer_norm_rows::fits_eight_rows;
using layer_norm_rows::kTogether;
using layer_norm_rows::Moments;

void forward_of_eight(const float* x, const float* w, const float* b, std::int64_t width, double eps, bool centred,
                      float* moment, float* y) {
  cpu::by_widest_vectors([=] {
    Moments<float> moments[kTogether];
    layer_norm_rows::moments_of_eight(x, width, eps, centred, moments);
    for (int r = 0; r < kTogether; ++r) {
      const auto [mean, inverse, rest] = moments[r];
      moment[3 * r] = mean;
      moment[3 * r + 1] = inverse;
      moment[3 * r + 2] = rest;
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < width; ++i)
        y[r * width + i] = std::fma((x[r * width + i] - mean - rest) * inverse, w[i], b[i]);
    }
  });
}

/// Rows of C; y may be x.
template <typename C>
void forward_rows(const C* x, const C* w, const C* b, std::int64_t rows, std::int64_t width, double eps, bool centred,
                  C* moment, C* y) {
  std::int64_t row = 0;
  if constexpr (std::is_same_v<C, float>)
    if (fits_eight_rows(width))
      for (; row + kTogether <= rows; row += kTogether)
        forward_of_eight(x + row * width, w, b, width, eps, centred, moment + 3 * row, y + row * width);
  for (; row < rows; ++row) {
    const C* xr = x + row * width;
    C* yr = y + row * width;
    const auto [mean, inverse, rest] = layer_norm_rows::moments_of<C>(xr, width, eps, centred);
    moment[3 * row] = mean;
    moment[3 * row + 1] = inverse;
    moment[3 * row + 2] = rest;
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < width; ++i) yr[i] = std::fma((xr[i] - mean - rest) * inverse, w[i], b[i]);
  }
}

/// Of rows of a half type, as many as are widened at a time.
std::int64_t rows_at_once(std::int64_t width) {
  return width <= 4096 ? kTogether : 1;
}

template <typename T>
void forward(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output, const Tensor& moments,
             std::int64_t rows, std::int64_t width, double eps, bool centred) {
  using C = compute_t<T>;
  const T* x = input.data<T>();
  T* y = output.data<T>();
  C* moment = moments.data<C>();
  const std::vector<C> scales = parameter_values<C>(weight, width, C(1), "layer_norm"),
                       shifts = parameter_values<C>(bias, width, C(0), "layer_norm");
  const C* w = scales.data();
  const C* b = shifts.data();
  parallel_for(rows, std::max<std::int64_t>(kElementBlock / width, 1), [&](std::int64_t begin, std::int64_t end) {
    if constexpr (cpu::is_half<T>) {
      const std::int64_t step = rows_at_once(width);
      const Tensor room = empty({step * width});
      float* const wide = room.data<float>();
      for (std::int64_t row = begin; row < end; row += step) {
        const std::int64_t count = std::min(step, end - row);
        cpu::widen_row(x + row * width, count * width, wide);
        forward_rows<C>(wide, w, b, count, width, eps, centred, moment + 3 * row, wide);
        cpu::narrow_row(wide, count * width, y + row * width);
      }
    } else {
      forward_rows<C>(x + begin * width, w, b, end - begin, width, eps, centred, moment + 3 * begin, y + begin * width);
    }
  });
}

/// input_backward() of eight rows.
void backward_of_eight(const float* g, const float* x, const float* w, const float* moment, std::int64_t width,
                       bool centred, float* d) {
  cpu::by_widest_vectors([=] {
    const auto h = [=](int r, std::int64_t i) { return cpu::load8(g + r * width + i) * cpu::load8(w + i); };
    const auto n = static_cast<double>(width);
    double sums[kTogether];
    float mean_h[kTogether] = {};
    if (centred) {
      layer_norm_rows::sums_of_eight(width, h, sums);
      for (int r = 0; r < kTogether; ++r) mean_h[r] = static_cast<float>(sums[r] / n);
    }
    layer_norm_rows::sums_of_eight(
        width,
        [=](int r, std::int64_t i) {
          return h(r, i) * ((cpu::load8(x + r * width + i) - cpu::broadcast8(moment[3 * r]) -
                             cpu::broadcast8(moment[3 * r + 2])) *
                            cpu::broadcast8(moment[3 * r + 1]));
        },
        sums);
    for (int r = 0; r < kTogether; ++r) {
      const float mean = moment[3 * r], inverse = moment[3 * r + 1], rest = moment[3 * r + 2];
      const float mean_hn = static_cast<float>(sums[r] / n), shift = mean_h[r];
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < width; ++i) {
        const float normalized = (x[r * width + i] - mean - rest) * inverse;
        d[r * width + i] = inverse * std::fma(-normalized, mean_hn, g[r * width + i] * w[i] - shift);
      }
    }
  });
}

/// With n = (x - mean) * inverse and h = grad * weight: grad_input = inverse * (h - mean(h) - n * mean(h * n)), without
/// mean(h) if the input was not centred. Of rows of C; d may be g.
template <typename C>
void input_backward_rows(const C* g, const C* x, const C* w, const C* moment, std::int64_t rows, std::int64_t width,
                         bool centred, C* d) {
  std::int64_t row = 0;
  if constexpr (std::is_same_v<C, float>)
    if (fits_eight_rows(width))
      for (; row + kTogether <= rows; row += kTogether)
        backward_of_eight(g + row * width, x + row * width, w, moment + 3 * row, width, centred, d + row * width);
  for (; row < rows; ++row) {
    const C mean = moment[3 * row], inverse = moment[3 * row + 1], rest = moment[3 * row + 2];
    const C *const gr = g + row * width, *const xr = x + row * width;
    const auto h = [&](std::int64_t i) { return gr[i] * w[i]; };
    const auto normalized = [&](std::int64_t i) { return (xr[i] - mean - rest) * inverse; };
    const auto n = static_cast<double>(width);
    const C mean_h = centred ? static_cast<C>(long_sum<C>(width, h) / n) : C(0);
    const C mean_hn = static_cast<C>(long_sum<C>(width, [&](std::int64_t i) { return h(i) * normalized(i); }) / n);
    C* dr = d + row * width;
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < width; ++i) dr[i] = inverse * std::fma(-normalized(i), mean_hn, h(i) - mean_h);
  }
}

template <typename T>
void input_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& moments,
                    const Tensor& grad_input, std::int64_t rows, std::int64_t width, bool centred) {
  using C = compute_t<T>;
  const T* g = grad.data<T>();
  const T* x = input.data<T>();
  const C* moment = moments.data<C>();
  T* d = grad_input.data<T>();
  const std::vector<C> scales = parameter_values<C>(weight, width, C(1), "layer_norm");
  const C* w = scales.data();
  parallel_for(rows, std::max<std::int64_t>(kElementBlock / width, 1), [&](std::int64_t begin, std::int64_t end) {
    if constexpr (cpu::is_half<T>) {
      const std::int64_t step = rows_at_once(width);
      const Tensor room_g = empty({step * width}), room_x = empty({step * width});
      float *const wide_g = room_g.data<float>(), *const wide_x = room_x.data<float>();
      for (std::int64_t row = begin; row < end; row += step) {
        const std::int64_t count = std::min(step, end - row);
        cpu::widen_row(g + row * width, count * width, wide_g);
        cpu::widen_row(x + row * width, count * width, wide_x);
        input_backward_rows<C>(wide_g, wide_x, w, moment + 3 * row, count, width, centred, wide_g);
        cpu::narrow_row(wide_g, count * width, d + row * width);
      }
    } else {
      input_backward_rows<C>(g + begin * width, x + begin * width, w, moment + 3 * begin, end - begin, width, centred,
                             d + begin * width);
    }
  });
}

/// Column sums over rows: partial sums of blocks of rows, added in block order.
template <typename T>
void parameter_backward(const Tensor& grad, const Tensor& input, const Tensor& moments, const Tensor& grad_weight,
                        const Tensor& grad_bias, std::int64_t rows, std::int64_t width) {
  using C = compute_t<T>;
  const T* g = grad.data<T>();
  const T* x = input.data<T>();
  const C* moment = moments.data<C>();
  // At most 64 blocks, which bounds the memory for partials.
  const std::int64_t block = std::max<std::int64_t>({kElementBlock / width, (rows + 63) / 64, 1});
  const std::int64_t blocks = (rows + block - 1) / block;
  std::vector<C> partials(static_cast<std::size_t>(blocks * 2 * width), C(0));
  parallel_for(rows, block, [&](std::int64_t begin, std::int64_t end) {
    C* weight_sums = partials.data() + begin / block * 2 * width;
    C* bias_sums = weight_sums + width;
    const auto add_row = [&](const C* gr, const C* xr, std::int64_t row) {
      const C mean = moment[3 * row], inverse = moment[3 * row + 1], rest = moment[3 * row + 2];
      for (std::int64_t i = 0; i < width; ++i) {
        weight_sums[i] = std::fma(gr[i] * (xr[i] - mean - rest), inverse, weight_sums[i]);
        bias_sums[i] += gr[i];
      }
    };
    if constexpr (cpu::is_half<T>) {
      const Tensor room_g = empty({width}), room_x = empty({width});
      float *const wide_g = room_g.data<float>(), *const wide_x = room_x.data<float>();
      for (std::int64_t row = begin; row < end; ++row) {
        cpu::widen_row(g + row * width, width, wide_g);
        cpu::widen_row(x + row * width, width, wide_x);
        add_row(wide_g, wide_x, row);
      }
    } else {
      for (std::int64_t row = begin; row < end; ++row) add_row(g + row * width, x + row * width, row);
    }
  });
  for (std::int64_t k = 1; k < blocks; ++k)
    for (std::int64_t i = 0; i < 2 * width; ++i)
      partials[static_cast<std::size_t>(i)] += partials[static_cast<std::size_t>(k * 2 * width + i)];
  const auto take = [&](const Tensor& result, std::int64_t offset) {
    if (!result.defined()) return;
    for (std::int64_t i = 0; i < width; ++i)
      result.data<C>()[i] = blocks > 0 ? partials[static_cast<std::size_t>(offset + i)] : C(0);
  };
  take(grad_weight, 0);
  take(grad_bias, width);
}

}  // namespace

void layer_norm_cpu(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output,
                    const Tensor& moments, std::int64_t rows, std::int64_t width, double eps, bool centred) {
  dispatch_floating(input.dtype(), "layer_norm",
                    [&]<typename T>() { forward<T>(input, weight, bias, output, moments, rows, width, eps, centred); });
}

void layer_norm_backward_cpu(const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& moments,
                             const Tensor& grad_input, const Tensor& grad_weight, const Tensor& grad_bias,
                             std::int64_t rows, std::int64_t width, bool centred) {
  dispatch_floating(input.dtype(), "layer_norm", [&]<typename T>() {
    if (grad_input.defined()) input_backward<T>(grad, input, weight, moments, grad_input, rows, width, centred);
    if (grad_weight.defined() || grad_bias.defined())
      parameter_backward<T>(grad, input, moments, grad_weight, grad_bias, rows, width);
  });
}

}  // namespace lockstep
