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
__global__ void resample_kernel(ResampleGeometry g, const T* x, T* out) {
  using C = compute_t<T>;
  const std::int64_t count = g.outer * g.axis.out * g.inner;
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const ManyTaps t = many_taps_at(g.axis, i / g.inner % g.axis.out);
    const T* from = x + i / (g.inner * g.axis.out) * g.axis.in * g.inner + i % g.inner;
    if (t.count == 1) {
      out[i] = from[t.at[0] * g.inner];
      continue;
    }
    C sum = static_cast<C>(t.weight[0]) * from_element<C>(from[t.at[0] * g.inner]);
    for (int k = 1; k < t.count; ++k) sum += static_cast<C>(t.weight[k]) * from_element<C>(from[t.at[k] * g.inner]);
    out[i] = to_element<T>(sum);
  }
}

/// A thread to an element of x: it adds up the places that look at it, in order.
template <typename T>
__global__ void resample_backward_kernel(ResampleGeometry g, const T* grad, T* x_grad) {
  using C = compute_t<T>;
  const std::int64_t count = g.outer * g.axis.in * g.inner;
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const std::int64_t element = i / g.inner % g.axis.in;
    const T* from = grad + i / (g.inner * g.axis.in) * g.axis.out * g.inner + i % g.inner;
    std::int64_t first, last;
    places_of(g.axis, element, first, last);
    C sum = 0;
    for (std::int64_t place = first; place <= last; ++place) {
      const ManyTaps t = many_taps_at(g.axis, place);
      for (int k = 0; k < t.count; ++k)
        if (t.at[k] == element) sum += static_cast<C>(t.weight[k]) * from_element<C>(from[place * g.inner]);
    }
    x_grad[i] = to_element<T>(sum);
  }
}

}  // namespace

void resample_cuda(const ResampleGeometry& geometry, const Tensor& x, const Tensor& out) {
  cuda::require_not_portable("interpolate");
  dispatch_floating(x.dtype(), "interpolate", [&]<typename T>() {
    const cuda::Launch launch(x);
    launch(resample_kernel<T>, cuda::blocks_for(out.numel()), cuda::kThreads, geometry, x.data<T>(), out.data<T>());
  });
}

void resample_backward_cuda(const ResampleGeometry& geometry, const Tensor& grad, const Tensor& x_grad) {
  cuda::require_not_portable("the gradient of interpolate");
  dispatch_floating(grad.dtype(), "interpolate backward", [&]<typename T>() {
    const cuda::Launch launch(grad);
    launch(resample_backward_kernel<T>, cuda::blocks_for(x_grad.numel()), cuda::kThreads, geometry, grad.data<T>(),
           x_grad.data<T>());
  });
}

}  // namespace lockstep
