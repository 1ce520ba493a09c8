#include <algorithm>

#include "lockstep/autograd/ops/tril/tril_kernels.h"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep::detail {
namespace {

template <typename T>
__global__ void triangle_kernel(const T* x, T* out, std::int64_t count, std::int64_t rows, std::int64_t columns,
                                std::int64_t diagonal, bool upper) {
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads()) {
    const std::int64_t distance = i % columns - i / columns % rows;
    out[i] = (upper ? distance >= diagonal : distance <= diagonal) ? x[i] : T{};
  }
}

}  // namespace

void triangle_cuda(const Tensor& x, const Tensor& out, std::int64_t diagonal, bool upper) {
  const cuda::Launch launch(x);
  dispatch_all(x.dtype(), "tril", [&]<typename T>() {
    launch(triangle_kernel<T>, cuda::blocks_for(x.numel()), cuda::kThreads, x.data<T>(), out.data<T>(), x.numel(),
           x.size(-2), x.size(-1), diagonal, upper);
  });
}

}  // namespace lockstep::detail
