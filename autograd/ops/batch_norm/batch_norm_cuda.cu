// What is done element by element; the sums are in batch_norm_sums_cuda.cu.

#include <cmath>

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/autograd/ops/support/channel_map.cuh"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::Source;

/// y = (x - mean) * slope + level
template <typename C>
struct Apply {
  const C *mean, *var;
  Source<C> weight, bias;
  C eps;

  struct Factors {
    C mean, slope, level;
    __device__ C operator()(C x) const { return (x - mean) * slope + level; }
  };
  __device__ Factors at(std::int64_t c) const {
    return {mean[c], C(1) / std::sqrt(var[c] + eps) * weight.at(c), bias.at(c)};
  }
};

/// d = (g - a - (x - mean) * b) * scale
template <typename C>
struct InputGrad {
  const C *mean, *var;
  Source<C> weight;
  const C *sum_grad, *sum_grad_normalized;  // null: the statistics are constants
  C eps, count;

  struct Factors {
    C mean, a, b, scale;
    // Where b is 0, an infinite x has no part in it.
    __device__ C operator()(C g, C x) const { return (g - a - (b == C(0) ? C(0) : (x - mean) * b)) * scale; }
  };
  __device__ Factors at(std::int64_t c) const {
    const C inverse = C(1) / std::sqrt(var[c] + eps);
    const bool constant = sum_grad == nullptr;
    return {mean[c], constant ? C(0) : sum_grad[c] / count, constant ? C(0) : sum_grad_normalized[c] * inverse / count,
            weight.at(c) * inverse};
  }
};

struct Running {
  Source<double> value, old;
  cuda::Target<double> updated;
  double take;

  Running(const Tensor& value, const Tensor& running, double take)
      : value(value), old(running), updated(running), take(take) {}
  __device__ void update(std::int64_t c, double keep) const {
    if (updated.wanted()) updated.set(c, keep * old.at(c) + take * value.at(c));
  }
};

__global__ void running_kernel(std::int64_t channels, double keep, Running mean, Running var) {
  const std::int64_t c = cuda::global_thread();
  if (c >= channels) return;
  mean.update(c, keep);
  var.update(c, keep);
}

}  // namespace

void batch_norm_running_cuda(const Tensor& mean, const Tensor& var, const Tensor& running_mean,
                             const Tensor& running_var, double unbiased, double momentum) {
  const cuda::Launch launch(mean);
  const std::int64_t channels = mean.numel();
  launch(running_kernel, static_cast<unsigned>((channels + cuda::kThreads - 1) / cuda::kThreads), cuda::kThreads,
         channels, 1.0 - momentum, Running(mean, running_mean, momentum),
         Running(var, running_var, momentum * unbiased));
}

void batch_norm_apply_cuda(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                           const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout) {
  cuda::require_not_portable("batch_norm");
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    cuda::channel_map<T>(
        output, layout,
        Apply<C>{mean.data<C>(), var.data<C>(), Source<C>(weight, C(1)), Source<C>(bias), static_cast<C>(eps)}, input);
  });
}

void batch_norm_input_grad_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                const Tensor& weight, const Tensor& sum_grad, const Tensor& sum_grad_normalized,
                                const Tensor& grad_input, double eps, std::int64_t count, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const bool constant = !sum_grad.defined();
    cuda::channel_map<T>(
        grad_input, layout,
        InputGrad<C>{mean.data<C>(), var.data<C>(), Source<C>(weight, C(1)), constant ? nullptr : sum_grad.data<C>(),
                     constant ? nullptr : sum_grad_normalized.data<C>(), static_cast<C>(eps), static_cast<C>(count)},
        grad, input);
  });
}

}  // namespace lockstep
