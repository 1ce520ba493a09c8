#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/layer_norm/layer_norm_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::kThreads;
using cuda::kWarpSize;
using cuda::to_element;

// A warp takes a row of up to 1,024 elements, a block a wider one. A thread keeps its first elements in registers, so
// that rows of up to 2,048 are read once and written once.

/// The threads that share a row, and this one's part of it: elements lane, lane + size ...
template <bool kBlock>
struct Group {
  static constexpr int size = kBlock ? kThreads : kWarpSize;
  static constexpr int held = kBlock ? 8 : 32;  ///< of a thread's elements, in registers
  const int lane = static_cast<int>(threadIdx.x) % size;

  template <typename T>
  __device__ T sum(T value) const {
    if constexpr (kBlock) {
      return cuda::block_sum(value);
    } else {
      return cuda::warp_sum(value);
    }
  }
  /// body(k, i) for the elements that are held in registers, then body(-1, i) for the others.
  template <typename Body>
  __device__ void for_each(std::int64_t width, Body&& body) const {
#pragma unroll
    for (int k = 0; k < held; ++k)
      if (lane + k * size < width) body(k, static_cast<std::int64_t>(lane + k * size));
    for (std::int64_t i = lane + held * size; i < width; i += size) body(-1, i);
  }
};

template <bool kBlock, typename T, typename C>
__global__ void forward_kernel(const T* x, const C* weight, const C* bias, T* y, C* moments, std::int64_t rows,
                               std::int64_t width, C eps, bool centred) {
  const Group<kBlock> group;
  for (std::int64_t row = cuda::global_thread() / group.size; row < rows; row += cuda::all_threads() / group.size) {
    const T* xr = x + row * width;
    C held[group.held] = {};
    C sum = 0;
    group.for_each(width, [&](int k, std::int64_t i) {
      const C value = from_element<C>(xr[i]);
      if (k >= 0) held[k] = value;
      sum += value;
    });
    const C mean = centred ? group.sum(sum) / static_cast<C>(width) : C(0);
    // What the rounded mean is off by, as on the CPU.
    C off = 0;
    group.for_each(width, [&](int k, std::int64_t i) { off += (k >= 0 ? held[k] : from_element<C>(xr[i])) - mean; });
    const C rest = centred ? group.sum(off) / static_cast<C>(width) : C(0);
    C squares = 0;
    group.for_each(width, [&](int k, std::int64_t i) {
      const C difference = (k >= 0 ? held[k] : from_element<C>(xr[i])) - mean - rest;
      squares += difference * difference;
    });
    const C inverse = C(1) / std::sqrt(group.sum(squares) / static_cast<C>(width) + eps);
    if (group.lane == 0) {
      moments[3 * row] = mean;
      moments[3 * row + 1] = inverse;
      moments[3 * row + 2] = rest;
    }
    group.for_each(width, [&](int k, std::int64_t i) {
      const C value = k >= 0 ? held[k] : from_element<C>(xr[i]);
      y[row * width + i] =
          to_element<T>((value - mean - rest) * inverse * (weight ? weight[i] : C(1)) + (bias ? bias[i] : C(0)));
    });
  }
}

/// With n = (x - mean) * inverse and h = grad * weight: grad_input = inverse * (h - mean(h) - n * mean(h * n)), without
/// mean(h) if the input was not centred.
template <bool kBlock, typename T, typename C>
__global__ void input_backward_kernel(const T* grad, const T* x, const C* weight, const C* moments, T* grad_input,
                                      std::int64_t rows, std::int64_t width, bool centred) {
  const Group<kBlock> group;
  for (std::int64_t row = cuda::global_thread() / group.size; row < rows; row += cuda::all_threads() / group.size) {
    const std::int64_t base = row * width;
    const C mean = moments[3 * row], inverse = moments[3 * row + 1], rest = moments[3 * row + 2];
    const auto h = [&](std::int64_t i) { return from_element<C>(grad[base + i]) * (weight ? weight[i] : C(1)); };
    const auto n = [&](std::int64_t i) { return (from_element<C>(x[base + i]) - mean - rest) * inverse; };
    C held_h[group.held] = {}, held_n[group.held] = {};
    cuda::Sums<C, 2> sums{{C(0), C(0)}};
    group.for_each(width, [&](int k, std::int64_t i) {
      const C hi = h(i), ni = n(i);
      if (k >= 0) held_h[k] = hi;
      if (k >= 0) held_n[k] = ni;
      sums.value[0] += hi;
      sums.value[1] += hi * ni;
    });
    sums = group.sum(sums);
    const C mean_h = centred ? sums.value[0] / static_cast<C>(width) : C(0),
            mean_hn = sums.value[1] / static_cast<C>(width);
    group.for_each(width, [&](int k, std::int64_t i) {
      const C hi = k >= 0 ? held_h[k] : h(i), ni = k >= 0 ? held_n[k] : n(i);
      grad_input[base + i] = to_element<T>(inverse * (hi - mean_h - ni * mean_hn));
    });
  }
}

/// Sums down kWarpSize columns over a segment of rows: of grad * n, and of grad. A result that is null is not written;
/// they are [segments, width].
template <typename T, typename C>
__global__ void parameter_backward_kernel(const T* grad, const T* x, const C* moments, C* weight_sums, C* bias_sums,
                                          std::int64_t rows, std::int64_t width, std::int64_t segments,
                                          std::int64_t per_segment) {
  constexpr int kRows = kThreads / kWarpSize;
  __shared__ cuda::Sums<C, 2> partial[kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, first = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t strips = (width + kWarpSize - 1) / kWarpSize;
  for (std::int64_t item = blockIdx.x; item < strips * segments; item += gridDim.x) {
    const std::int64_t column = item % strips * kWarpSize + lane, segment = item / strips;
    const std::int64_t begin = segment * per_segment;
    const std::int64_t end = begin + per_segment < rows ? begin + per_segment : rows;
    cuda::Sums<C, 2> sums{{C(0), C(0)}};
    if (column < width) {
#pragma unroll 4
      for (std::int64_t row = begin + first; row < end; row += kRows) {
        const C incoming = from_element<C>(grad[row * width + column]);
        const C* of_row = moments + 3 * row;
        const C n = (from_element<C>(x[row * width + column]) - of_row[0] - of_row[2]) * of_row[1];
        sums.value[0] += incoming * n;
        sums.value[1] += incoming;
      }
    }
    __syncthreads();
    partial[threadIdx.x] = sums;
    __syncthreads();
    if (first == 0 && column < width) {
      for (int r = 1; r < kRows; ++r) sums = sums + partial[r * kWarpSize + lane];
      if (weight_sums) weight_sums[segment * width + column] = sums.value[0];
      if (bias_sums) bias_sums[segment * width + column] = sums.value[1];
    }
  }
}

/// A parameter in the type that is computed in: to tell types apart for each element would take longer than the rest.
template <typename C>
Tensor as_computed(const Tensor& parameter) {
  return parameter.defined() ? as_contiguous(cast_values(parameter, dtype_of<C>)) : parameter;
}
template <typename C>
const C* data_of(const Tensor& t) {
  return t.defined() ? t.data<C>() : nullptr;
}

/// Calls f.operator()<kBlock>(blocks).
template <typename F>
void with_group(std::int64_t rows, std::int64_t width, F&& f) {
  if (width <= Group<false>::size * Group<false>::held) {
    f.template operator()<false>(cuda::blocks_for(rows, kThreads / kWarpSize));
  } else {
    f.template operator()<true>(cuda::blocks_for(rows, 1));
  }
}

template <typename T>
void parameter_backward(const cuda::Launch& launch, const Tensor& grad, const Tensor& input, const Tensor& moments,
                        const Tensor& grad_weight, const Tensor& grad_bias, std::int64_t rows, std::int64_t width) {
  using C = compute_t<T>;
  constexpr std::int64_t kEnoughBlocks = 512, kLeastRows = 64;
  const std::int64_t strips = (width + kWarpSize - 1) / kWarpSize;
  const std::int64_t segments =
      std::max<std::int64_t>(1, std::min(kEnoughBlocks / strips, (rows + kLeastRows - 1) / kLeastRows));
  const auto sums_for = [&](const Tensor& result) {
    return result.defined() && segments > 1 ? empty({segments, width}, options_of(result)) : result;
  };
  const Tensor weight_sums = sums_for(grad_weight), bias_sums = sums_for(grad_bias);
  const auto data = [](const Tensor& t) { return t.defined() ? t.data<C>() : nullptr; };
  launch(parameter_backward_kernel<T, C>, cuda::blocks_for(strips * segments, 1), kThreads, grad.data<T>(),
         input.data<T>(), moments.data<C>(), data(weight_sums), data(bias_sums), rows, width, segments,
         (rows + segments - 1) / segments);
  if (segments == 1) return;
  const auto join = [&](const Tensor& sums, const Tensor& result) {
    if (result.defined()) reduce_sum(sums, result.as_strided({1, width}, {width, 1}, result.offset()));
  };
  join(weight_sums, grad_weight);
  join(bias_sums, grad_bias);
}

}  // namespace

void layer_norm_cuda(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& output,
                     const Tensor& moments, std::int64_t rows, std::int64_t width, double eps, bool centred) {
  cuda::require_not_portable("layer_norm");
  if (rows == 0) return;
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "layer_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const Tensor scale = as_computed<C>(weight), shift = as_computed<C>(bias);
    with_group(rows, width, [&]<bool kBlock>(unsigned blocks) {
      launch(forward_kernel<kBlock, T, C>, blocks, kThreads, input.data<T>(), data_of<C>(scale), data_of<C>(shift),
             output.data<T>(), moments.data<C>(), rows, width, static_cast<C>(eps), centred);
    });
  });
}

void layer_norm_backward_cuda(const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& moments,
                              const Tensor& grad_input, const Tensor& grad_weight, const Tensor& grad_bias,
                              std::int64_t rows, std::int64_t width, bool centred) {
  cuda::require_not_portable("the gradient of layer_norm");
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "layer_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const Tensor scale = as_computed<C>(weight);
    if (grad_input.defined() && rows > 0)
      with_group(rows, width, [&]<bool kBlock>(unsigned blocks) {
        launch(input_backward_kernel<kBlock, T, C>, blocks, kThreads, grad.data<T>(), input.data<T>(),
               data_of<C>(scale), moments.data<C>(), grad_input.data<T>(), rows, width, centred);
      });
    if (grad_weight.defined() || grad_bias.defined())
      parameter_backward<T>(launch, grad, input, moments, grad_weight, grad_bias, rows, width);
  });
}

}  // namespace lockstep
