#include "lockstep/autograd/ops/mse_loss/mse_loss_kernels.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/autograd/ops/support/loss_sums.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::to_element;

template <typename T>
struct Square {
  const T *x, *y;
  __device__ compute_t<T> operator()(std::int64_t i) const {
    const auto difference = from_element<compute_t<T>>(x[i]) - from_element<compute_t<T>>(y[i]);
    return difference * difference;
  }
};

template <typename T>
__global__ void backward_kernel(std::int64_t count, std::int64_t step, compute_t<T> scale, const T* grad, const T* x,
                                const T* y, T* dx, T* dy) {
  using C = compute_t<T>;
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const C value = scale * from_element<C>(grad[i * step]) * (from_element<C>(x[i]) - from_element<C>(y[i]));
    if (dx) dx[i] = to_element<T>(value);
    if (dy) dy[i] = to_element<T>(-value);
  }
}

}  // namespace

void mse_loss_cuda(const Tensor& input, const Tensor& target, const Tensor& loss, Reduction reduction) {
  dispatch_floating(input.dtype(), "mse_loss", [&]<typename T>() {
    cuda::element_loss<T, compute_t<T>>(input, loss, reduction, Square<T>{input.data<T>(), target.data<T>()});
  });
}

void mse_loss_backward_cuda(const Tensor& grad, const Tensor& input, const Tensor& target, const Tensor& grad_input,
                            const Tensor& grad_target, Reduction reduction) {
  const std::int64_t count = input.numel();
  if (count == 0) return;
  dispatch_floating(input.dtype(), "mse_loss", [&]<typename T>() {
    const cuda::Launch launch(input);
    launch(backward_kernel<T>, cuda::blocks_for(count), cuda::kThreads, count, reduction == Reduction::none ? 1 : 0,
           static_cast<compute_t<T>>(2.0 * reduction_scale(input, reduction)), grad.data<T>(), input.data<T>(),
           target.data<T>(), grad_input.defined() ? grad_input.data<T>() : nullptr,
           grad_target.defined() ? grad_target.data<T>() : nullptr);
  });
}

}  // namespace lockstep
