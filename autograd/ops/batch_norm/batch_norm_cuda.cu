// What is done element by element; the sums are in batch_norm_sums_cuda.cu.

#include <cmath>

#include "lockstep/autograd/ops/batch_norm/batch_norm_apply.cuh"
#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/autograd/ops/batch_norm/batch_norm_running.cuh"
#include "lockstep/autograd/ops/support/channel_map.cuh"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

/// d = (g - a - (x - mean) * b) * scale, of what of g comes through a relu behind the normalisation, if there is one.
template <typename T>
struct InputGrad {
  using C = compute_t<T>;
  Apply<T> forward;
  const C *sum_grad, *sum_grad_normalized;  // null: the statistics are constants
  C count;
  bool through;

  struct Factors {
    typename Apply<T>::Factors forward;
    C a, b;
  };
  __device__ Factors at(std::int64_t c) const {
    const bool constant = sum_grad == nullptr;
    const C inverse = C(1) / std::sqrt(forward.var[c] + forward.eps);
    return {forward.at(c), constant ? C(0) : sum_grad[c] / count,
            constant ? C(0) : sum_grad_normalized[c] * inverse / count};
  }
  __device__ C operator()(const Factors& f, C g, C x) const {
    if (through) g = through_relu<T>(f.forward, g, x);
    // Where b is 0, an infinite x has no part in it.
    return (g - f.a - (f.b == C(0) ? C(0) : (x - f.forward.mean) * f.b)) * f.forward.slope;
  }
};

__global__ void running_kernel(std::int64_t channels, Running running) {
  const std::int64_t c = cuda::global_thread();
  if (c < channels) running.update(c);
}

}  // namespace

void batch_norm_running_cuda(const Tensor& mean, const Tensor& var, const BatchNormRunning& running) {
  const cuda::Launch launch(mean);
  const std::int64_t channels = mean.numel();
  launch(running_kernel, static_cast<unsigned>((channels + cuda::kThreads - 1) / cuda::kThreads), cuda::kThreads,
         channels, Running(mean, var, running));
}

void batch_norm_apply_cuda(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                           const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout) {
  batch_norm_apply_followed_cuda(input, mean, var, weight, bias, output, eps, layout, {});
}

void batch_norm_apply_followed_cuda(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                                    const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout,
                                    const BatchNormFollowing& following) {
  cuda::require_not_portable("batch_norm");
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    const Apply<T> apply(mean, var, weight, bias, eps, following);
    if (following.other.defined())
      cuda::channel_map<T>(output, layout, apply, input, following.other);
    else
      cuda::channel_map<T>(output, layout, apply, input);
  });
}

void batch_norm_input_grad_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                const Tensor& weight, const Tensor& sum_grad, const Tensor& sum_grad_normalized,
                                const Tensor& grad_input, double eps, std::int64_t count, ChannelLayout layout) {
  batch_norm_input_grad_through_cuda(grad, input, mean, var, weight, Tensor(), false, sum_grad, sum_grad_normalized,
                                     grad_input, eps, count, layout);
}

void batch_norm_input_grad_through_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                        const Tensor& weight, const Tensor& bias, bool relu, const Tensor& sum_grad,
                                        const Tensor& sum_grad_normalized, const Tensor& grad_input, double eps,
                                        std::int64_t count, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const bool constant = !sum_grad.defined();
    const InputGrad<T> gradient{Apply<T>(mean, var, weight, bias, eps), constant ? nullptr : sum_grad.data<C>(),
                                constant ? nullptr : sum_grad_normalized.data<C>(), static_cast<C>(count), relu};
    cuda::channel_map<T>(grad_input, layout, gradient, grad, input);
  });
}

}  // namespace lockstep
