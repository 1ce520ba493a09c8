#include "lockstep/autograd/ops/interpolate/interpolate_taps.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::to_element;

template <typename T>
__global__ void forward_kernel(InterpolateGeometry g, const T* x, T* out) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.rows.out * g.columns.out;
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const Taps t = taps_at(g.columns, i % g.columns.out), y = taps_at(g.rows, i / g.columns.out % g.rows.out);
    const T* plane = x + i / (g.columns.out * g.rows.out) * g.rows.in * g.columns.in;
    const T *top = plane + y.low * g.columns.in, *bottom = plane + y.high * g.columns.in;
    const C lower = static_cast<C>(y.high_weight), upper = C(1) - lower;
    const C b = static_cast<C>(t.high_weight), a = C(1) - b;
    if (g.columns.nearest) {
      out[i] = top[t.low];
      continue;
    }
    const C above = a * from_element<C>(top[t.low]) + b * from_element<C>(top[t.high]);
    const C below = g.rows.nearest ? C(0) : a * from_element<C>(bottom[t.low]) + b * from_element<C>(bottom[t.high]);
    out[i] = to_element<T>(g.rows.nearest ? above : upper * above + lower * below);
  }
}

/// The weight that a place's look has for an element.
template <typename C>
__device__ C weight_of(const Taps& t, std::int64_t element) {
  return (t.low == element ? static_cast<C>(1.0 - t.high_weight) : C(0)) +
         (t.high == element ? static_cast<C>(t.high_weight) : C(0));
}

/// A thread to an element of x: it adds up the places that look at it, in order.
template <typename T>
__global__ void backward_kernel(InterpolateGeometry g, const T* grad, T* x_grad) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.rows.in * g.columns.in;
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const std::int64_t column = i % g.columns.in, row = i / g.columns.in % g.rows.in;
    const T* plane = grad + i / (g.columns.in * g.rows.in) * g.rows.out * g.columns.out;
    std::int64_t top, bottom, left, right;
    places_of(g.rows, row, top, bottom);
    places_of(g.columns, column, left, right);
    C sum = 0;
    for (std::int64_t y = top; y <= bottom; ++y) {
      const C down = weight_of<C>(taps_at(g.rows, y), row);
      if (down == C(0)) continue;
      for (std::int64_t x = left; x <= right; ++x)
        sum += down * weight_of<C>(taps_at(g.columns, x), column) * from_element<C>(plane[y * g.columns.out + x]);
    }
    x_grad[i] = to_element<T>(sum);
  }
}

}  // namespace

void interpolate_cuda(const InterpolateGeometry& geometry, const Tensor& x, const Tensor& out) {
  cuda::require_not_portable("interpolate");
  dispatch_floating(x.dtype(), "interpolate", [&]<typename T>() {
    const cuda::Launch launch(x);
    launch(forward_kernel<T>, cuda::blocks_for(out.numel()), cuda::kThreads, geometry, x.data<T>(), out.data<T>());
  });
}

void interpolate_backward_cuda(const InterpolateGeometry& geometry, const Tensor& grad, const Tensor& x_grad) {
  cuda::require_not_portable("the gradient of interpolate");
  dispatch_floating(grad.dtype(), "interpolate backward", [&]<typename T>() {
    const cuda::Launch launch(grad);
    launch(backward_kernel<T>, cuda::blocks_for(x_grad.numel()), cuda::kThreads, geometry, grad.data<T>(),
           x_grad.data<T>());
  });
}

}  // namespace lockstep
