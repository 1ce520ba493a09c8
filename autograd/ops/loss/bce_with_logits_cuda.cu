#include <cmath>

#include "lockstep/autograd/ops/loss/bce_with_logits_kernels.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/autograd/ops/support/loss_sums.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::to_element;

constexpr const char* kOp = "binary_cross_entropy_with_logits";

/// log(1 + exp(-x)) without overflow.
template <typename C>
__device__ C softplus_of_minus(C x) {
  return std::log1p(std::exp(-std::fabs(x))) + (x < C(0) ? -x : C(0));
}

/// 1 / (1 + exp(x)).
template <typename C>
__device__ C sigmoid_of_minus(C x) {
  const C e = std::exp(-std::fabs(x));
  return (x < C(0) ? C(1) : e) / (C(1) + e);
}

/// One element; weight and pos_weight may be null.
template <typename T>
struct Values {
  using C = compute_t<T>;
  const T *x, *target, *weight, *pos_weight;

  Values(const Tensor& x, const Tensor& target, const Tensor& weight, const Tensor& pos_weight)
      : x(x.data<T>()),
        target(target.data<T>()),
        weight(weight.defined() ? weight.data<T>() : nullptr),
        pos_weight(pos_weight.defined() ? pos_weight.data<T>() : nullptr) {}

  __device__ C logit(std::int64_t i) const { return from_element<C>(x[i]); }
  __device__ C label(std::int64_t i) const { return from_element<C>(target[i]); }
  __device__ C factor(std::int64_t i) const { return weight ? from_element<C>(weight[i]) : C(1); }
  /// pos_weight - 1
  __device__ C extra(std::int64_t i) const { return pos_weight ? from_element<C>(pos_weight[i]) - C(1) : C(0); }

  __device__ C operator()(std::int64_t i) const {
    const C t = label(i), z = logit(i);
    return (softplus_of_minus(z) * (C(1) + extra(i) * t) + (C(1) - t) * z) * factor(i);
  }
};

template <typename T>
__global__ void backward_kernel(std::int64_t count, std::int64_t step, compute_t<T> scale, const T* grad, Values<T> in,
                                T* dx, T* dt) {
  using C = compute_t<T>;
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const C t = in.label(i), z = in.logit(i), extra = in.extra(i);
    const C factor = scale * from_element<C>(grad[i * step]) * in.factor(i);
    // As the CPU's input_slope() and target_slope().
    if (dx)
      dx[i] = to_element<T>(factor * ((C(1) - t) * sigmoid_of_minus(-z) - t * (C(1) + extra) * sigmoid_of_minus(z)));
    if (dt) {
      dt[i] =
          to_element<T>(factor * (in.pos_weight ? (C(1) + extra) * softplus_of_minus(z) - softplus_of_minus(-z) : -z));
    }
  }
}

}  // namespace

void bce_with_logits_cuda(const Tensor& input, const Tensor& target, const Tensor& weight, const Tensor& pos_weight,
                          const Tensor& loss, Reduction reduction) {
  cuda::require_not_portable("binary_cross_entropy_with_logits");
  dispatch_floating(input.dtype(), kOp, [&]<typename T>() {
    cuda::element_loss<T, compute_t<T>>(input, loss, reduction, Values<T>(input, target, weight, pos_weight));
  });
}

void bce_with_logits_backward_cuda(const Tensor& grad, const Tensor& input, const Tensor& target, const Tensor& weight,
                                   const Tensor& pos_weight, const Tensor& grad_input, const Tensor& grad_target,
                                   Reduction reduction) {
  cuda::require_not_portable("the gradient of binary_cross_entropy_with_logits");
  const std::int64_t count = input.numel();
  if (count == 0) return;
  dispatch_floating(input.dtype(), kOp, [&]<typename T>() {
    const cuda::Launch launch(input);
    launch(backward_kernel<T>, cuda::blocks_for(count), cuda::kThreads, count, reduction == Reduction::none ? 1 : 0,
           static_cast<compute_t<T>>(reduction_scale(input, reduction)), grad.data<T>(),
           Values<T>(input, target, weight, pos_weight), grad_input.defined() ? grad_input.data<T>() : nullptr,
           grad_target.defined() ? grad_target.data<T>() : nullptr);
  });
}

}  // namespace lockstep
