// Small convolutions go to conv2d_pool_small_cuda.cu. Else the library convolves; one pass over its result adds the
// bias, pools and takes the relu. Backward spreads the pooled gradient out again for the library; the bias's gradient
// needs the pooled one alone.

#include "lockstep/autograd/ops/conv2d/conv2d_pool_kernels.h"
#include "lockstep/autograd/ops/conv2d/conv2d_pool_small.h"
#include "lockstep/autograd/ops/conv2d/conv2d_portable.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/support/channel_sums.cuh"
#include "lockstep/autograd/ops/support/pool2d.cuh"
#include "lockstep/core/cuda/math_mode.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::Pack;
using cuda::to_element;

template <typename C>
__device__ C positive(C value) {
  return value < C(0) ? C(0) : value;
}

/// `kPairs`: the values' rows are read two elements at a time.
template <bool kPairs, typename T>
__global__ void pool_kernel(Pool2dGeometry g, std::int64_t channels, ReluPlace relu, const T* values, const T* bias,
                            T* out, std::uint8_t* positions) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.oh * g.ow;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const cuda::PlanePosition at(index, g.oh, g.ow);
    const T* corner = values + (at.plane * g.h + 2 * at.y) * g.w + 2 * at.x;
    const C shift = bias ? from_element<C>(bias[at.plane % channels]) : C(0);
    C best = 0;
    int position = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      Pack<T, 2> pair;
      if constexpr (kPairs)
        pair = *reinterpret_cast<const Pack<T, 2>*>(corner + row * g.w);
      else
        pair = {corner[row * g.w], corner[row * g.w + 1]};
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const C sum = from_element<C>(pair.value[column]) + shift;
        const C value = relu == ReluPlace::before ? positive(sum) : sum;
        const int i = 2 * row + column;
        if (i > 0 && !(value > best || value != value)) continue;  // NaN wins; of equal values the first
        best = value;
        position = i;
      }
    }
    out[index] = to_element<T>(relu == ReluPlace::after ? positive(best) : best);
    if (positions)
      positions[index] = static_cast<std::uint8_t>(best <= C(0) ? position | kMaxPoolNotPositive : position);
  }
}

template <typename T>
struct PooledGradients {
  const T* grad;
  template <int W>
  __device__ Pack<compute_t<T>, W> pack(std::int64_t offset) const {
    const auto read = *reinterpret_cast<const Pack<T, W>*>(grad + offset);
    Pack<compute_t<T>, W> result;
#pragma unroll
    for (int j = 0; j < W; ++j) result.value[j] = from_element<compute_t<T>>(read.value[j]);
    return result;
  }
};

Pool2dGeometry pool_of(const Conv2dGeometry& g) {
  Pool2dGeometry pool;
  pool.planes = g.n * g.out;
  pool.h = g.oh, pool.w = g.ow, pool.oh = g.oh / 2, pool.ow = g.ow / 2;
  pool.kernel = pool.stride = 2;
  return pool;
}

Tensor empty_result(const Conv2dGeometry& g, const Tensor& like) {
  return empty({g.n, g.out, g.oh, g.ow}, {.dtype = like.dtype(), .device = like.device()});
}

}  // namespace

void conv2d_pool_forward_cuda(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                              ReluPlace relu, const Tensor& out, const Tensor& positions) {
  const bool portable = cuda::portable();
  if (!portable && conv2d_pool_small::supports_forward(g, x.dtype()))
    return conv2d_pool_small::forward(g, x, weight, bias, relu, out, positions);
  const Tensor values = empty_result(g, x);
  // The CPU's sums begin with the bias.
  conv2d_forward_cuda(g, x, weight, portable ? bias : Tensor(), values, false);
  dispatch_floating(x.dtype(), "conv2d", [&]<typename T>() {
    const cuda::Launch launch(x);
    const bool pairs = g.ow % 2 == 0 && cuda::aligned(values.raw_data(), 2 * sizeof(T));
    launch(pairs ? pool_kernel<true, T> : pool_kernel<false, T>, cuda::blocks_for(out.numel()), cuda::kThreads,
           pool_of(g), g.out, relu, values.data<T>(), bias.defined() && !portable ? bias.data<T>() : nullptr,
           out.data<T>(), positions.defined() ? positions.data<std::uint8_t>() : nullptr);
  });
}

void conv2d_pool_backward_cuda(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x,
                               const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad,
                               const Tensor& bias_grad) {
  if (cuda::portable())
    return conv2d_portable::pool_backward(g, grad, positions, x, weight, x_grad, weight_grad, bias_grad);
  const bool small_data = conv2d_pool_small::supports_data(g, grad.dtype());
  const bool small_weight = conv2d_pool_small::supports_weight(g, grad.dtype());
  if (x_grad.defined() && small_data) conv2d_pool_small::backward_data(g, grad, positions, weight, x_grad);
  if (weight_grad.defined() && small_weight)
    conv2d_pool_small::backward_weight(g, grad, positions, x, weight_grad, bias_grad);
  const bool data = x_grad.defined() && !small_data, weights = weight_grad.defined() && !small_weight;
  if (!data && !weights) return;

  const Tensor spread = empty_result(g, grad);
  max_pool2d_backward_cuda(pool_of(g), grad, positions, spread);
  if (data) conv2d_backward_data_cuda(g, spread, weight, x_grad);
  if (!weights) return;
  conv2d_backward_weight_cuda(g, spread, x, weight_grad, {});
  if (!bias_grad.defined()) return;
  dispatch_floating(grad.dtype(), "conv2d", [&]<typename T>() {
    cuda::channel_sums<T>(PooledGradients<T>{grad.data<T>()}, bias_grad, {g.n, g.out, (g.oh / 2) * (g.ow / 2)},
                          cuda::aligned(grad.raw_data(), 16));
  });
}

}  // namespace lockstep
