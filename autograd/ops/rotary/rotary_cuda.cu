#include "lockstep/autograd/ops/rotary/rotary_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep::detail {
namespace {

template <typename T, typename C>
__global__ void rotary_kernel(const T* x, const C* cosine, const C* sine, T* out, std::int64_t pairs,
                              std::int64_t length, std::int64_t half, C direction) {
  for (std::int64_t i = cuda::global_thread(); i < pairs; i += cuda::all_threads()) {
    const std::int64_t row = i / half, column = i % half, angle = row % length * half + column;
    const std::int64_t at = 2 * row * half + column;
    const C a = cuda::from_element<C>(x[at]), b = cuda::from_element<C>(x[at + half]);
    const C c = cosine[angle], s = direction * sine[angle];
    out[at] = cuda::to_element<T>(a * c - b * s);
    out[at + half] = cuda::to_element<T>(b * c + a * s);
  }
}

}  // namespace

void rotary_cuda(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& out, bool back) {
  cuda::require_not_portable("rotary");
  const cuda::Launch launch(x);
  dispatch_floating(x.dtype(), "rotary", [&]<typename T>() {
    using C = compute_t<T>;
    launch(rotary_kernel<T, C>, cuda::blocks_for(x.numel() / 2), cuda::kThreads, x.data<T>(), cosine.data<C>(),
           sine.data<C>(), out.data<T>(), x.numel() / 2, x.size(1), x.size(2) / 2, back ? C(-1) : C(1));
  });
}

}  // namespace lockstep::detail
