#include "lockstep/autograd/ops/loss/pointwise_loss_functors.h"
#include "lockstep/autograd/ops/loss/pointwise_loss_kernels.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/autograd/ops/support/loss_sums.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::to_element;

template <typename F, typename T>
struct Value {
  F f;
  const T *x, *y;
  __device__ compute_t<T> operator()(std::int64_t i) const {
    using C = compute_t<T>;
    return f.value(from_element<C>(x[i]), from_element<C>(y[i]));
  }
};

template <typename F, typename T>
__global__ void backward_kernel(F f, std::int64_t count, std::int64_t step, compute_t<T> scale, const T* grad,
                                const T* x, const T* y, T* dx, T* dy) {
  using C = compute_t<T>;
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const C g = scale * from_element<C>(grad[i * step]), a = from_element<C>(x[i]), b = from_element<C>(y[i]);
    if (dx) dx[i] = to_element<T>(g * f.by_input(a, b));
    if (dy) dy[i] = to_element<T>(g * f.by_target(a, b));
  }
}

}  // namespace

void pointwise_loss_cuda(PointwiseLoss kind, double parameter, const Tensor& input, const Tensor& target,
                         const Tensor& loss, Reduction reduction) {
  cuda::require_not_portable("a loss by element");
  dispatch_floating(input.dtype(), "loss", [&]<typename T>() {
    using C = compute_t<T>;
    pointwise::visit<C>(kind, parameter, [&](auto f) {
      cuda::element_loss<T, C>(input, loss, reduction, Value<decltype(f), T>{f, input.data<T>(), target.data<T>()});
    });
  });
}

void pointwise_loss_backward_cuda(PointwiseLoss kind, double parameter, const Tensor& grad, const Tensor& input,
                                  const Tensor& target, const Tensor& grad_input, const Tensor& grad_target,
                                  Reduction reduction) {
  cuda::require_not_portable("the gradient of a loss by element");
  const std::int64_t count = input.numel();
  if (count == 0) return;
  dispatch_floating(input.dtype(), "loss backward", [&]<typename T>() {
    using C = compute_t<T>;
    pointwise::visit<C>(kind, parameter, [&](auto f) {
      const cuda::Launch launch(input);
      launch(backward_kernel<decltype(f), T>, cuda::blocks_for(count), cuda::kThreads, f, count,
             reduction == Reduction::none ? 1 : 0, static_cast<C>(reduction_scale(input, reduction)), grad.data<T>(),
             input.data<T>(), target.data<T>(), grad_input.defined() ? grad_input.data<T>() : nullptr,
             grad_target.defined() ? grad_target.data<T>() : nullptr);
    });
  });
}

}  // namespace lockstep
