#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/ops/group_norm/group_norm_kernels.h"
#include "lockstep/autograd/ops/layer_norm/layer_norm_moments.h"
#include "lockstep/autograd/ops/support/parameter_values.h"
#include "lockstep/core/cpu/half_rows.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

using cpu::kElementBlock;
using cpu::long_sum;
using layer_norm_rows::Moments;

std::int64_t rows_of_task(const GroupNormSizes& sizes) {
  return std::max<std::int64_t>(kElementBlock / sizes.width(), 1);
}

template <typename T>
void forward(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output, const Tensor& moments,
             const GroupNormSizes& sizes, double eps) {
  using C = compute_t<T>;
  const std::int64_t width = sizes.width(), all = sizes.groups * sizes.channels;
  const std::vector<C> scales = parameter_values<C>(weight, all, C(1), "group_norm"),
                       shifts = parameter_values<C>(bias, all, C(0), "group_norm");
  const T* const x = input.data<T>();
  T* const y = output.data<T>();
  C* const moment = moments.data<C>();
  const auto normalize = [&](std::int64_t row, const C* from, C* to) {
    const Moments<C> m = layer_norm_rows::moments_of<C>(from, width, eps, true);
    moment[3 * row] = m.mean;
    moment[3 * row + 1] = m.inverse;
    moment[3 * row + 2] = m.rest;
    const std::int64_t first = row % sizes.groups * sizes.channels;
    for (std::int64_t c = 0; c < sizes.channels; ++c, from += sizes.positions, to += sizes.positions) {
      const C scale = scales[static_cast<std::size_t>(first + c)], shift = shifts[static_cast<std::size_t>(first + c)];
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < sizes.positions; ++i) to[i] = std::fma(m.normalized(from[i]), scale, shift);
    }
  };
  parallel_for(sizes.rows(), rows_of_task(sizes), [&](std::int64_t begin, std::int64_t end) {
    if constexpr (cpu::is_half<T>) {
      const Tensor room = empty({width});
      float* const wide = room.data<float>();
      for (std::int64_t row = begin; row < end; ++row) {
        cpu::widen_row(x + row * width, width, wide);
        normalize(row, wide, wide);
        cpu::narrow_row(wide, width, y + row * width);
      }
    } else {
      for (std::int64_t row = begin; row < end; ++row) normalize(row, x + row * width, y + row * width);
    }
  });
}

/// With n = (x - mean) * inverse and h = grad * weight of a row: grad_input = inverse * (h - mean(h) - n * mean(h *
/// n)). The sums of grad and grad * n of each channel give these means and, over the samples, the parameters'
/// gradients.
template <typename T>
void backward(const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& moments,
              const Tensor& grad_input, const Tensor& grad_weight, const Tensor& grad_bias,
              const GroupNormSizes& sizes) {
  using C = compute_t<T>;
  struct Sums {
    double grad, product;
  };
  const std::int64_t width = sizes.width(), all = sizes.groups * sizes.channels;
  const std::vector<C> scales = parameter_values<C>(weight, all, C(1), "group_norm");
  std::vector<Sums> sums(static_cast<std::size_t>(sizes.samples * all));
  const T *const g = grad.data<T>(), *const x = input.data<T>();
  const C* const moment = moments.data<C>();
  T* const d = grad_input.defined() ? grad_input.data<T>() : nullptr;
  const auto of_row = [&](std::int64_t row, const C* gr, const C* xr, C* dr) {
    const Moments<C> m{moment[3 * row], moment[3 * row + 1], moment[3 * row + 2]};
    const std::int64_t first = row % sizes.groups * sizes.channels;
    double sum_h = 0, sum_hn = 0;
    for (std::int64_t c = 0; c < sizes.channels; ++c) {
      const C *const gc = gr + c * sizes.positions, *const xc = xr + c * sizes.positions;
      Sums& of_channel = sums[static_cast<std::size_t>(row * sizes.channels + c)];
      of_channel.grad = long_sum<C>(sizes.positions, [=](std::int64_t i) { return gc[i]; });
      of_channel.product = long_sum<C>(sizes.positions, [=](std::int64_t i) { return gc[i] * m.normalized(xc[i]); });
      const auto scale = static_cast<double>(scales[static_cast<std::size_t>(first + c)]);
      sum_h += scale * of_channel.grad;
      sum_hn += scale * of_channel.product;
    }
    if (!dr) return;
    const C mean_h = static_cast<C>(sum_h / static_cast<double>(width));
    const C mean_hn = static_cast<C>(sum_hn / static_cast<double>(width));
    for (std::int64_t c = 0; c < sizes.channels; ++c) {
      const C *const gc = gr + c * sizes.positions, *const xc = xr + c * sizes.positions;
      C* const to = dr + c * sizes.positions;
      const C scale = scales[static_cast<std::size_t>(first + c)];
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < sizes.positions; ++i)
        to[i] = m.inverse * std::fma(-m.normalized(xc[i]), mean_hn, gc[i] * scale - mean_h);
    }
  };
  parallel_for(sizes.rows(), rows_of_task(sizes), [&](std::int64_t begin, std::int64_t end) {
    if constexpr (cpu::is_half<T>) {
      const Tensor room_g = empty({width}), room_x = empty({width});
      float *const wide_g = room_g.data<float>(), *const wide_x = room_x.data<float>();
      for (std::int64_t row = begin; row < end; ++row) {
        cpu::widen_row(g + row * width, width, wide_g);
        cpu::widen_row(x + row * width, width, wide_x);
        of_row(row, wide_g, wide_x, d ? wide_g : nullptr);
        if (d) cpu::narrow_row(wide_g, width, d + row * width);
      }
    } else {
      for (std::int64_t row = begin; row < end; ++row)
        of_row(row, g + row * width, x + row * width, d ? d + row * width : nullptr);
    }
  });
  for (std::int64_t c = 0; c < all; ++c) {
    Sums total{0, 0};
    for (std::int64_t n = 0; n < sizes.samples; ++n) {
      total.grad += sums[static_cast<std::size_t>(n * all + c)].grad;
      total.product += sums[static_cast<std::size_t>(n * all + c)].product;
    }
    if (grad_weight.defined()) grad_weight.data<C>()[c] = static_cast<C>(total.product);
    if (grad_bias.defined()) grad_bias.data<C>()[c] = static_cast<C>(total.grad);
  }
}

}  // namespace

void group_norm_cpu(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output,
                    const Tensor& moments, const GroupNormSizes& sizes, double eps) {
  dispatch_floating(input.dtype(), "group_norm",
                    [&]<typename T>() { forward<T>(input, weight, bias, output, moments, sizes, eps); });
}

void group_norm_backward_cpu(const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& moments,
                             const Tensor& grad_input, const Tensor& grad_weight, const Tensor& grad_bias,
                             const GroupNormSizes& sizes) {
  dispatch_floating(input.dtype(), "group_norm", [&]<typename T>() {
    backward<T>(grad, input, weight, moments, grad_input, grad_weight, grad_bias, sizes);
  });
}

}  // namespace lockstep
