#include "lockstep/autograd/ops/topk/topk_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep::detail {
namespace {

/// An element and its place; place -1 is none.
template <typename C>
struct Entry {
  C value;
  std::int64_t at;
};

template <typename C>
__device__ bool above(C a, C b) {
  return a > b || (a != a && b == b);
}

/// True if a comes before b: the order is total, so the result does not depend on who asks whom.
template <typename C>
__device__ bool before(Entry<C> a, Entry<C> b, bool largest) {
  if (a.at < 0 || b.at < 0) return b.at < 0 && a.at >= 0;
  if (largest ? above(a.value, b.value) : above(b.value, a.value)) return true;
  if (largest ? above(b.value, a.value) : above(a.value, b.value)) return false;
  return a.at < b.at;
}

template <typename C>
struct Best {
  bool largest;
  __device__ Entry<C> operator()(Entry<C> a, Entry<C> b) const { return before(b, a, largest) ? b : a; }
};

/// A block to a row: k times the best element after the one found last.
template <typename T, typename C>
__global__ void topk_kernel(const T* x, std::int64_t* indices, std::int64_t rows, std::int64_t length, std::int64_t k,
                            bool largest) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Entry<C> last{C(0), -1};
    for (std::int64_t found = 0; found < k; ++found) {
      Entry<C> best{C(0), -1};
      for (std::int64_t i = threadIdx.x; i < length; i += blockDim.x) {
        const Entry<C> entry{cuda::from_element<C>(x[row * length + i]), i};
        if ((last.at < 0 || before(last, entry, largest)) && before(entry, best, largest)) best = entry;
      }
      last = cuda::block_reduce(best, Best<C>{largest});
      if (threadIdx.x == 0) indices[row * k + found] = last.at;
    }
  }
}

}  // namespace

void topk_cuda(const Tensor& x, const Tensor& indices, bool largest) {
  const cuda::Launch launch(x);
  dispatch_numeric(x.dtype(), "topk", [&]<typename T>() {
    using C = compute_t<T>;
    launch(topk_kernel<T, C>, cuda::blocks_for(x.size(0), 1), cuda::kThreads, x.data<T>(), indices.data<std::int64_t>(),
           x.size(0), x.size(1), indices.size(1), largest);
  });
}

}  // namespace lockstep::detail
