#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/loss/bce_with_logits_kernels.h"
#include "lockstep/autograd/ops/support/block_sums.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {

namespace {

constexpr std::int64_t kStep = 256;
constexpr std::int64_t kBlock = 4096;  // elements to a task: log1p costs more than an addition

template <typename T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

/// log(1 + exp(-x)) without overflow.
template <typename C>
C softplus_of_minus(C x) {
  return math::log1p(math::exp_below(x)) + (x < C(0) ? -x : C(0));
}

/// out[i] = softplus_of_minus(x[i]). Flattened, as the next one: a call in the loop would keep it from being
/// vectorised.
template <typename C, typename T>
[[gnu::flatten, gnu::noinline]] void softplus_row(const T* x, std::int64_t count, C* out) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) out[i] = softplus_of_minus(static_cast<C>(x[i]));
}

/// 1 / (1 + exp(x)).
template <typename C>
C sigmoid_of_minus(C x) {
  const C e = math::exp_below(x);
  return (x < C(0) ? C(1) : e) / (C(1) + e);
}

/// The loss's derivative by x for label t and pos_weight p: (1 - t) sigmoid(x) - t p sigmoid(-x), which keeps its
/// digits at both ends.
template <typename C>
C input_slope(C x, C t, C p) {
  return (C(1) - t) * sigmoid_of_minus(-x) - t * p * sigmoid_of_minus(x);
}

/// The loss's derivative by the label: -x, and with pos_weight p, p log(1 + exp(-x)) - log(1 + exp(x)). `extra`: p - 1,
/// or null.
template <typename C>
C target_slope(C x, const C* extra) {
  return extra ? (C(1) + *extra) * softplus_of_minus(x) - softplus_of_minus(-x) : -x;
}

/// dx[i] = factor[i] * input_slope(); `extra` is p - 1 for each element.
template <typename C, typename T>
[[gnu::flatten, gnu::noinline]] void input_slopes(const T* x, const T* t, const C* extra, const C* factor,
                                                  std::int64_t count, T* dx) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i)
    dx[i] = static_cast<T>(factor[i] * input_slope(static_cast<C>(x[i]), static_cast<C>(t[i]), C(1) + extra[i]));
}

}  // namespace

void bce_with_logits_cpu(const Tensor& input, const Tensor& target, const Tensor& weight, const Tensor& pos_weight,
                         const Tensor& loss, Reduction reduction) {
  dispatch_floating(input.dtype(), "binary_cross_entropy_with_logits", [&]<typename T>() {
    using C = compute_t<T>;
    const T* x = input.data<T>();
    const T* t = target.data<T>();
    const T* w = data_or_null<T>(weight);
    const T* p = data_or_null<T>(pos_weight);
    T* values = reduction == Reduction::none ? loss.data<T>() : nullptr;
    const auto sum = block_sums<1>(input.numel(), kBlock, [&](std::int64_t begin, std::int64_t end) {
      // In steps, over a small buffer, so that each loop is vectorised.
      C buffer[kStep];
      double total = 0;
      for (std::int64_t first = begin; first < end; first += kStep) {
        const std::int64_t count = std::min(kStep, end - first);
        softplus_row<C>(x + first, count, buffer);
        if (p)
          for (std::int64_t i = 0; i < count; ++i)
            buffer[i] *= C(1) + (static_cast<C>(p[first + i]) - C(1)) * static_cast<C>(t[first + i]);
        for (std::int64_t i = 0; i < count; ++i)
          buffer[i] += (C(1) - static_cast<C>(t[first + i])) * static_cast<C>(x[first + i]);
        if (w)
          for (std::int64_t i = 0; i < count; ++i) buffer[i] *= static_cast<C>(w[first + i]);
        if (values) {
          for (std::int64_t i = 0; i < count; ++i) values[first + i] = static_cast<T>(buffer[i]);
        } else {
          total += static_cast<double>(cpu::lane_sum<C>(count, [&](std::int64_t i) { return buffer[i]; }));
        }
      }
      return std::array<double, 1>{total};
    });
    const double count = reduction == Reduction::mean ? static_cast<double>(input.numel()) : 1.0;
    if (reduction != Reduction::none) *loss.data<T>() = static_cast<T>(static_cast<C>(sum[0] / count));
  });
}

void bce_with_logits_backward_cpu(const Tensor& grad, const Tensor& input, const Tensor& target, const Tensor& weight,
                                  const Tensor& pos_weight, const Tensor& grad_input, const Tensor& grad_target,
                                  Reduction reduction) {
  dispatch_floating(input.dtype(), "binary_cross_entropy_with_logits", [&]<typename T>() {
    using C = compute_t<T>;
    const T* g = grad.data<T>();
    const T* x = input.data<T>();
    const T* t = target.data<T>();
    const T* w = data_or_null<T>(weight);
    const T* p = data_or_null<T>(pos_weight);
    T* dx = grad_input.defined() ? grad_input.data<T>() : nullptr;
    T* dt = grad_target.defined() ? grad_target.data<T>() : nullptr;
    const std::int64_t step = reduction == Reduction::none ? 1 : 0;
    const C scale = static_cast<C>(reduction_scale(input, reduction));
    parallel_for(input.numel(), kBlock, [&](std::int64_t begin, std::int64_t end) {
      C factor[kStep], extra[kStep];
      for (std::int64_t first = begin; first < end; first += kStep) {
        const std::int64_t count = std::min(kStep, end - first);
        for (std::int64_t i = 0; i < count; ++i) {
          factor[i] = scale * static_cast<C>(g[(first + i) * step]);
          extra[i] = C(0);
        }
        if (w)
          for (std::int64_t i = 0; i < count; ++i) factor[i] *= static_cast<C>(w[first + i]);
        if (p)
          for (std::int64_t i = 0; i < count; ++i) extra[i] = static_cast<C>(p[first + i]) - C(1);
        if (dx) input_slopes<C>(x + first, t + first, extra, factor, count, dx + first);
        if (dt)
          for (std::int64_t i = 0; i < count; ++i)
            dt[first + i] =
                static_cast<T>(factor[i] * target_slope(static_cast<C>(x[first + i]), p ? &extra[i] : nullptr));
      }
    });
  });
}

}  // namespace lockstep
