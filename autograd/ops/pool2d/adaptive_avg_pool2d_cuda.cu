// One thread an output, or, for large windows, one warp; backward one thread an element of x, which adds up its windows
// in the CPU's order.

#include "lockstep/autograd/ops/pool2d/adaptive_avg_pool2d_kernels.h"
#include "lockstep/autograd/ops/support/pool2d.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::Range;
using cuda::to_element;

// Window `index` of `out` that tile `size` elements. With size and out exchanged: the windows over element `index`.
__device__ Range window(std::int64_t index, std::int64_t out, std::int64_t size) {
  return {index * size / out, ((index + 1) * size + out - 1) / out};
}

template <typename T>
__global__ void forward_kernel(Pool2dGeometry g, const T* in, T* out) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.oh * g.ow;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const cuda::PlanePosition at(index, g.oh, g.ow);
    const T* image = in + at.plane * g.h * g.w;
    const Range rows = window(at.y, g.oh, g.h), columns = window(at.x, g.ow, g.w);
    C sum = 0;
    for (std::int64_t y = rows.begin; y < rows.end; ++y)
      for (std::int64_t x = columns.begin; x < columns.end; ++x) sum += from_element<C>(image[y * g.w + x]);
    out[index] = to_element<T>(sum / static_cast<C>(rows.length() * columns.length()));
  }
}

template <typename T>
__global__ void forward_by_warp_kernel(Pool2dGeometry g, const T* in, T* out) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.oh * g.ow;
  const std::int64_t lane = threadIdx.x % cuda::kWarpSize, warps = cuda::all_threads() / cuda::kWarpSize;
  for (std::int64_t index = cuda::global_thread() / cuda::kWarpSize; index < count; index += warps) {
    const cuda::PlanePosition at(index, g.oh, g.ow);
    const T* image = in + at.plane * g.h * g.w;
    const Range rows = window(at.y, g.oh, g.h), columns = window(at.x, g.ow, g.w);
    const std::int64_t width = columns.length(), area = rows.length() * width;
    C sum = 0;
    for (std::int64_t i = lane; i < area; i += cuda::kWarpSize) {
      const std::int64_t y = i / width, x = i - y * width;
      sum += from_element<C>(image[(rows.begin + y) * g.w + columns.begin + x]);
    }
#pragma unroll
    for (int step = cuda::kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[index] = to_element<T>(sum / static_cast<C>(area));
  }
}

template <typename T>
__global__ void backward_kernel(Pool2dGeometry g, const T* grad, T* x_grad) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.h * g.w;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const cuda::PlanePosition at(index, g.h, g.w);
    const Range oys = window(at.y, g.h, g.oh), oxs = window(at.x, g.w, g.ow);
    C sum = 0;
    for (std::int64_t oy = oys.begin; oy < oys.end; ++oy) {
      const Range rows = window(oy, g.oh, g.h);
      for (std::int64_t ox = oxs.begin; ox < oxs.end; ++ox) {
        const Range columns = window(ox, g.ow, g.w);
        sum += from_element<C>(grad[(at.plane * g.oh + oy) * g.ow + ox]) /
               static_cast<C>(rows.length() * columns.length());
      }
    }
    x_grad[index] = to_element<T>(sum);
  }
}

}  // namespace

void adaptive_avg_pool2d_forward_cuda(const Pool2dGeometry& g, const Tensor& x, const Tensor& out) {
  cuda::require_not_portable("adaptive_avg_pool2d");
  dispatch_floating(x.dtype(), "adaptive_avg_pool2d", [&]<typename T>() {
    const cuda::Launch launch(x);
    if (g.h * g.w >= g.oh * g.ow * cuda::kWarpSize)
      launch(forward_by_warp_kernel<T>, cuda::blocks_for(out.numel() * cuda::kWarpSize), cuda::kThreads, g, x.data<T>(),
             out.data<T>());
    else
      launch(forward_kernel<T>, cuda::blocks_for(out.numel()), cuda::kThreads, g, x.data<T>(), out.data<T>());
  });
}

void adaptive_avg_pool2d_backward_cuda(const Pool2dGeometry& g, const Tensor& grad, const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "adaptive_avg_pool2d", [&]<typename T>() {
    const cuda::Launch launch(grad);
    launch(backward_kernel<T>, cuda::blocks_for(x_grad.numel()), cuda::kThreads, g, grad.data<T>(), x_grad.data<T>());
  });
}

}  // namespace lockstep
