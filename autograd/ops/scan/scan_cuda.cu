#include "lockstep/autograd/ops/scan/scan_loop.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

template <typename T, typename C>
struct ReadElement {
  __device__ C operator()(T value) const { return cuda::from_element<C>(value); }
};
template <typename T, typename C>
struct WriteElement {
  __device__ T operator()(C value) const { return cuda::to_element<T>(value); }
};

/// A thread to a slice.
template <typename T, typename C>
__global__ void scan_kernel(Scan scan, const T* x, const T* y, T* out, std::int64_t slices, std::int64_t length,
                            std::int64_t inner, bool reverse) {
  for (std::int64_t i = cuda::global_thread(); i < slices; i += cuda::all_threads()) {
    const std::int64_t at = i / inner * length * inner + i % inner + (reverse ? (length - 1) * inner : 0);
    scan_slice<C>(scan, x + at, y ? y + at : nullptr, out + at, length, reverse ? -inner : inner, ReadElement<T, C>{},
                  WriteElement<T, C>{});
  }
}

}  // namespace

void scan_cuda(Scan scan, const Tensor& x, const Tensor& y, const Tensor& out, bool reverse) {
  cuda::require_not_portable("a running sum or product");
  const cuda::Launch launch(x);
  const std::int64_t slices = x.size(0) * x.size(2);
  const auto run = [&]<typename T>() {
    launch(scan_kernel<T, scan_t<T>>, cuda::blocks_for(slices), cuda::kThreads, scan, x.data<T>(),
           y.defined() ? y.data<T>() : nullptr, out.data<T>(), slices, x.size(1), x.size(2), reverse);
  };
  if (x.dtype() == kInt64) return run.template operator()<std::int64_t>();
  dispatch_floating(x.dtype(), "cumsum", run);
}

}  // namespace lockstep
