#include "lockstep/autograd/ops/recurrent/recurrent_cells.h"
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

template <typename T, typename C>
__global__ void forward_kernel(RecurrentCell cell, cells::Addresses<T> a, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads())
    cells::forward_unit<C>(a.reserve != nullptr, cell, a, i / width, i % width, width, ReadElement<T, C>{},
                           WriteElement<T, C>{});
}

template <typename T, typename C>
__global__ void backward_kernel(RecurrentCell cell, cells::GradientAddresses<T> a, std::int64_t count,
                                std::int64_t width) {
  for (std::int64_t i = cuda::global_thread(); i < count; i += cuda::all_threads())
    cells::backward_unit<C>(cell, a, i / width, i % width, width, ReadElement<T, C>{}, WriteElement<T, C>{});
}

}  // namespace

void cell_cuda(RecurrentCell cell, const CellStep& step) {
  cuda::require_not_portable("a recurrent layer");
  const cuda::Launch launch(step.h);
  const std::int64_t count = step.h.numel();
  dispatch_floating(step.h.dtype(), "recurrent", [&]<typename T>() {
    launch(forward_kernel<T, compute_t<T>>, cuda::blocks_for(count), cuda::kThreads, cell, cells::Addresses<T>(step),
           count, step.h.size(1));
  });
}

void cell_backward_cuda(RecurrentCell cell, const CellGradient& step) {
  const cuda::Launch launch(step.h_grad);
  const std::int64_t count = step.h_grad.numel();
  dispatch_floating(step.h_grad.dtype(), "recurrent backward", [&]<typename T>() {
    launch(backward_kernel<T, compute_t<T>>, cuda::blocks_for(count), cuda::kThreads, cell,
           cells::GradientAddresses<T>(step), count, step.h_grad.size(1));
  });
}

}  // namespace lockstep
