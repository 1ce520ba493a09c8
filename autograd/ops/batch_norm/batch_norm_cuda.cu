// What is done element by element; the sums are in batch_norm_sums_cuda.cu.

#include <cmath>

#include "autograd/ops/batch_norm/batch_norm_kernels.h"
#include "core/cuda/dispatch.cuh"
#include "core/cuda/elementwise.cuh"

namespace lockstep {
namespace {

using cuda::compute_t;
using cuda::from_element;
using cuda::Pack;
using cuda::Source;
using cuda::to_element;

/// Which channel the elements of a pack belong to: one, or neighbouring ones where the inner size is 1.
struct Channels {
  std::int64_t channels, inner;
  __device__ std::int64_t of(std::int64_t element) const { return element / inner % channels; }
};

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
    __device__ C operator()(C g, C x) const { return (g - a - (x - mean) * b) * scale; }
  };
  __device__ Factors at(std::int64_t c) const {
    const C inverse = C(1) / std::sqrt(var[c] + eps);
    const bool constant = sum_grad == nullptr;
    return {mean[c], constant ? C(0) : sum_grad[c] / count, constant ? C(0) : sum_grad_normalized[c] * inverse / count,
            weight.at(c) * inverse};
  }
};

/// out[i] = f.at(channel of i)(in[i]...), W elements of one channel at a time, or, with kRow, of W channels.
template <int W, bool kRow, typename T, typename F, typename... In>
__global__ void channel_kernel(std::int64_t packs, Channels channels, F f, T* out, const In*... in) {
  using C = compute_t<T>;
  for (std::int64_t p = cuda::global_thread(); p < packs; p += cuda::all_threads()) {
    const std::int64_t first = channels.of(p * W);
    auto factors = f.at(first);
    Pack<T, W> result;
    [&](const auto&... pack) {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if (kRow && j > 0) factors = f.at(first + j);
        result.value[j] = to_element<T>(factors(from_element<C>(pack.value[j])...));
      }
    }(reinterpret_cast<const Pack<T, W>*>(in)[p]...);
    reinterpret_cast<Pack<T, W>*>(out)[p] = result;
  }
}

template <typename T, typename>
using TypeOf = T;

template <typename T, typename F, typename... In>
void run(const Tensor& out, const ChannelLayout& layout, const F& f, const In&... in) {
  constexpr int W = 16 / sizeof(T);
  const std::int64_t count = out.numel();
  if (count == 0) return;
  const cuda::Launch launch(out);
  const Channels channels{layout.channels, layout.inner};
  const bool aligned = cuda::aligned(out.raw_data(), 16) && (cuda::aligned(in.raw_data(), 16) && ...);
  const auto start = [&](auto* kernel, int width) {
    launch(kernel, cuda::blocks_for(count / width), cuda::kThreads, count / width, channels, f, out.data<T>(),
           static_cast<const T*>(in.template data<T>())...);
  };
  if (aligned && layout.inner % W == 0) {
    start(channel_kernel<W, false, T, F, TypeOf<T, In>...>, W);
  } else if (aligned && layout.inner == 1 && layout.channels % W == 0) {
    start(channel_kernel<W, true, T, F, TypeOf<T, In>...>, W);
  } else {
    start(channel_kernel<1, false, T, F, TypeOf<T, In>...>, 1);
  }
}

struct Running {
  double keep, take;
  __device__ double operator()(double old, double value) const { return keep * old + take * value; }
};

}  // namespace

void batch_norm_running_cuda(const Tensor& value, const Tensor& running, double scale, double momentum) {
  cuda::map<double>(running, Running{1.0 - momentum, momentum * scale}, cuda::Input<double>(running),
                    cuda::Input<double>(value));
}

void batch_norm_apply_cuda(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                           const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout) {
  cuda::dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    run<T>(output, layout,
           Apply<C>{mean.data<C>(), var.data<C>(), Source<C>(weight, C(1)), Source<C>(bias), static_cast<C>(eps)},
           input);
  });
}

void batch_norm_input_grad_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                const Tensor& weight, const Tensor& sum_grad, const Tensor& sum_grad_normalized,
                                const Tensor& grad_input, double eps, std::int64_t count, ChannelLayout layout) {
  cuda::dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const bool constant = !sum_grad.defined();
    run<T>(grad_input, layout,
           InputGrad<C>{mean.data<C>(), var.data<C>(), Source<C>(weight, C(1)), constant ? nullptr : sum_grad.data<C>(),
                        constant ? nullptr : sum_grad_normalized.data<C>(), static_cast<C>(eps), static_cast<C>(count)},
           grad, input);
  });
}

}  // namespace lockstep
