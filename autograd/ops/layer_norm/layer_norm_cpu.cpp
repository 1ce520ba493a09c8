#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/layer_norm/layer_norm_eight_rows.h"
#include "lockstep/autograd/ops/layer_norm/layer_norm_kernels.h"
#include "lockstep/autograd/ops/layer_norm/layer_norm_moments.h"
#include "lockstep/autograd/ops/support/parameter_values.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

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
    if constexpr (std::is_same_v<T, float>)
      if (fits_eight_rows(width))
        for (; begin + kTogether <= end; begin += kTogether)
          forward_of_eight(x + begin * width, w, b, width, eps, centred, moment + 3 * begin, y + begin * width);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* xr = x + row * width;
      T* yr = y + row * width;
      const auto [mean, inverse, rest] = layer_norm_rows::moments_of<C>(xr, width, eps, centred);
      moment[3 * row] = mean;
      moment[3 * row + 1] = inverse;
      moment[3 * row + 2] = rest;
      for (std::int64_t i = 0; i < width; ++i)
        yr[i] = static_cast<T>(std::fma((static_cast<C>(xr[i]) - mean - rest) * inverse, w[i], b[i]));
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
/// mean(h) if the input was not centred.
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
    if constexpr (std::is_same_v<T, float>)
      if (fits_eight_rows(width))
        for (; begin + kTogether <= end; begin += kTogether)
          backward_of_eight(g + begin * width, x + begin * width, w, moment + 3 * begin, width, centred,
                            d + begin * width);
    for (std::int64_t row = begin; row < end; ++row) {
      const C mean = moment[3 * row], inverse = moment[3 * row + 1], rest = moment[3 * row + 2];
      const T* gr = g + row * width;
      const T* xr = x + row * width;
      const auto h = [&](std::int64_t i) { return static_cast<C>(gr[i]) * w[i]; };
      const auto normalized = [&](std::int64_t i) { return (static_cast<C>(xr[i]) - mean - rest) * inverse; };
      const auto n = static_cast<double>(width);
      const C mean_h = centred ? static_cast<C>(long_sum<C>(width, h) / n) : C(0);
      const C mean_hn = static_cast<C>(long_sum<C>(width, [&](std::int64_t i) { return h(i) * normalized(i); }) / n);
      T* dr = d + row * width;
      for (std::int64_t i = 0; i < width; ++i)
        dr[i] = static_cast<T>(inverse * std::fma(-normalized(i), mean_hn, h(i) - mean_h));
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
    for (std::int64_t row = begin; row < end; ++row) {
      const C mean = moment[3 * row], inverse = moment[3 * row + 1], rest = moment[3 * row + 2];
      const T* gr = g + row * width;
      const T* xr = x + row * width;
      for (std::int64_t i = 0; i < width; ++i) {
        const C incoming = static_cast<C>(gr[i]);
        weight_sums[i] = std::fma(incoming * (static_cast<C>(xr[i]) - mean - rest), inverse, weight_sums[i]);
        bias_sums[i] += incoming;
      }
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
