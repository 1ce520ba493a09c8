// One thread an output; backward one thread an element of x, which adds up its windows in the CPU's order.

#include "lockstep/autograd/ops/pool2d/avg_pool2d_kernels.h"
#include "lockstep/autograd/ops/support/pool2d.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::to_element;

// The part of a window that lies inside the image, and the window's length with its padding.
struct Window {
  std::int64_t begin, end, padded;

  __device__ Window(std::int64_t index, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                    std::int64_t size) {
    begin = index * stride - padding;
    end = begin + kernel < size + padding ? begin + kernel : size + padding;
    padded = end - begin;
    if (begin < 0) begin = 0;
    if (end > size) end = size;
  }
};

template <typename C>
__device__ C divisor_of(const AvgPool2dDivisor& divisor, const Window& rows, const Window& columns) {
  if (divisor.fixed != 0) return static_cast<C>(divisor.fixed);
  if (divisor.count_include_pad) return static_cast<C>(rows.padded * columns.padded);
  return static_cast<C>((rows.end - rows.begin) * (columns.end - columns.begin));
}

template <typename T>
__global__ void forward_kernel(Pool2dGeometry g, AvgPool2dDivisor divisor, const T* in, T* out) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.oh * g.ow;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const cuda::PlanePosition at(index, g.oh, g.ow);
    const T* image = in + at.plane * g.h * g.w;
    const Window rows(at.y, g.kernel.h, g.stride.h, g.padding.h, g.h);
    const Window columns(at.x, g.kernel.w, g.stride.w, g.padding.w, g.w);
    C sum = 0;
    for (std::int64_t y = rows.begin; y < rows.end; ++y)
      for (std::int64_t x = columns.begin; x < columns.end; ++x) sum += from_element<C>(image[y * g.w + x]);
    const bool empty = rows.begin >= rows.end || columns.begin >= columns.end;
    out[index] = to_element<T>(empty ? C(0) : sum / divisor_of<C>(divisor, rows, columns));
  }
}

template <typename T>
__global__ void backward_kernel(Pool2dGeometry g, AvgPool2dDivisor divisor, const T* grad, T* x_grad) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.h * g.w;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const cuda::PlanePosition at(index, g.h, g.w);
    const cuda::Range oys = cuda::windows_over(at.y, g.kernel.h, g.stride.h, g.padding.h, g.oh);
    const cuda::Range oxs = cuda::windows_over(at.x, g.kernel.w, g.stride.w, g.padding.w, g.ow);
    C sum = 0;
    for (std::int64_t oy = oys.begin; oy < oys.end; ++oy) {
      const Window rows(oy, g.kernel.h, g.stride.h, g.padding.h, g.h);
      for (std::int64_t ox = oxs.begin; ox < oxs.end; ++ox) {
        const Window columns(ox, g.kernel.w, g.stride.w, g.padding.w, g.w);
        sum += from_element<C>(grad[(at.plane * g.oh + oy) * g.ow + ox]) / divisor_of<C>(divisor, rows, columns);
      }
    }
    x_grad[index] = to_element<T>(sum);
  }
}

}  // namespace

void avg_pool2d_forward_cuda(const Pool2dGeometry& g, const AvgPool2dDivisor& divisor, const Tensor& x,
                             const Tensor& out) {
  cuda::require_not_portable("avg_pool2d");
  dispatch_floating(x.dtype(), "avg_pool2d", [&]<typename T>() {
    const cuda::Launch launch(x);
    launch(forward_kernel<T>, cuda::blocks_for(out.numel()), cuda::kThreads, g, divisor, x.data<T>(), out.data<T>());
  });
}

void avg_pool2d_backward_cuda(const Pool2dGeometry& g, const AvgPool2dDivisor& divisor, const Tensor& grad,
                              const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "avg_pool2d", [&]<typename T>() {
    const cuda::Launch launch(grad);
    launch(backward_kernel<T>, cuda::blocks_for(x_grad.numel()), cuda::kThreads, g, divisor, grad.data<T>(),
           x_grad.data<T>());
  });
}

}  // namespace lockstep
