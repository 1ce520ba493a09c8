#include "lockstep/autograd/ops/reduce/reduce_cuda.cuh"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/core/cpu/row_io.h"

namespace lockstep {
namespace {

using cuda::kThreads;
using cuda::kWarpSize;
using reduction::Terms;

template <typename C>
struct Best {
  C value;
  std::int64_t index;  // -1: nothing yet
};

/// The larger (or smaller) of two; NaN before all; of equals the first. The order of arguments does not matter.
template <typename C>
struct Better {
  bool maximum;
  __device__ bool beats(C a, C b) const { return (maximum ? a > b : a < b) | ((a != a) & (b == b)); }
  __device__ Best<C> operator()(const Best<C>& a, const Best<C>& b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    if (beats(a.value, b.value)) return a;
    if (beats(b.value, a.value)) return b;
    return a.index < b.index ? a : b;
  }
};

/// A warp or block to each output.
template <typename C>
__global__ void arg_along_kernel(Terms terms, Better<C> better, bool whole_block, cuda::Source<C> x,
                                 std::int64_t* out) {
  const int group = whole_block ? static_cast<int>(blockDim.x) : kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % group;
  for (std::int64_t output = cuda::global_thread() / group; output < terms.outputs;
       output += cuda::all_threads() / group) {
    const std::int64_t base = terms.base(output);
    Best<C> best{C(0), -1};
    for (std::int64_t t = lane; t < terms.count; t += group)
      best = better(best, Best<C>{x.at(base + terms.term(t)), t});
    best = whole_block ? cuda::block_reduce(best, better) : cuda::warp_reduce(best, better);
    if (lane == 0) out[output] = best.index;
  }
}

/// A thread to each output.
template <typename C>
__global__ void arg_across_kernel(Terms terms, Better<C> better, cuda::Source<C> x, std::int64_t* out) {
  for (std::int64_t output = cuda::global_thread(); output < terms.outputs; output += cuda::all_threads()) {
    const std::int64_t base = terms.base(output);
    Best<C> best{x.at(base), 0};
    for (std::int64_t t = 1; t < terms.count; ++t) best = better(best, Best<C>{x.at(base + terms.term(t)), t});
    out[output] = best.index;
  }
}

template <typename C>
void run(bool maximum, const Tensor& x, const Tensor& out) {
  const ReducePlan plan(x, out);
  if (plan.outputs == 0) return;
  const cuda::Launch launch(out);
  auto* indices = out.data<std::int64_t>();
  const Better<C> better{maximum};
  if (reduction::terms_are_near(plan)) {
    const bool whole_block = plan.count > kWarpSize * 16;
    launch(arg_along_kernel<C>, cuda::blocks_for(plan.outputs, whole_block ? 1 : kThreads / kWarpSize), kThreads,
           Terms(plan), better, whole_block, cuda::Source<C>(x), indices);
  } else {
    launch(arg_across_kernel<C>, cuda::blocks_for(plan.outputs), kThreads, Terms(plan), better, cuda::Source<C>(x),
           indices);
  }
}

}  // namespace

void arg_reduce_cuda(bool maximum, const Tensor& x, int, const Tensor& out) {
  switch (cpu::compute_dtype(x.dtype())) {
    case kFloat32:
      return run<float>(maximum, x, out);
    case kFloat64:
      return run<double>(maximum, x, out);
    default:
      return run<std::int64_t>(maximum, x, out);
  }
}

}  // namespace lockstep
