#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/softmax/softmax_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::kThreads;
using cuda::kWarpSize;
using cuda::to_element;

// Note [Softmax on CUDA]
// A slice is read once and kept in registers, and written once: kHeld elements to a thread of a warp (slices of up to
// 32 kHeld, as all classifiers' are) or of a block. Slices beyond that are read again for each of the steps, which the
// caches mostly serve. A warp's or block's threads take neighbouring elements of a slice where it is dense; where
// inner > 1 a thread takes a whole slice, so that neighbouring threads read neighbouring elements.
constexpr int kHeld = 8;

/// The functions of a slice: what is folded twice (backward: once), and what each element becomes.
template <typename C>
struct Forward {
  bool log;
  static constexpr bool kSubtractsTop = true;
  __device__ C term(C x, C) const { return std::exp(x); }
  __device__ C total(C sum) const { return log ? std::log(sum) : sum; }
  __device__ C result(C x, C, C total) const { return log ? x - total : std::exp(x) / total; }
};
template <typename C>
struct Backward {
  bool log;
  static constexpr bool kSubtractsTop = false;
  __device__ C term(C y, C grad) const { return log ? grad : grad * y; }
  __device__ C total(C sum) const { return sum; }
  __device__ C result(C y, C grad, C total) const { return log ? grad - std::exp(y) * total : y * (grad - total); }
};

template <typename C>
struct Larger {  // as on the CPU, a NaN shows in the sum
  __device__ C operator()(C a, C b) const { return a > b ? a : b; }
};

template <bool kBlock, typename T, typename Op>
__device__ T fold(T value, Op op) {
  if constexpr (kBlock) {
    return cuda::block_reduce(value, op);
  } else {
    return cuda::warp_reduce(value, op);
  }
}

/// inner == 1: a warp or block to a slice. x is the input (or the forward pass's output), grad null in forward.
template <bool kBlock, typename T, typename C, typename F>
__global__ void rows_kernel(F f, const T* x, const T* grad, T* out, std::int64_t rows, std::int64_t length) {
  const int group = kBlock ? static_cast<int>(blockDim.x) : kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % group;
  for (std::int64_t row = cuda::global_thread() / group; row < rows; row += cuda::all_threads() / group) {
    const T* xr = x + row * length;
    const T* gr = grad ? grad + row * length : nullptr;
    T* to = out + row * length;
    C held[kHeld], held_grad[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const std::int64_t i = lane + static_cast<std::int64_t>(k) * group;
      held[k] = i < length ? from_element<C>(xr[i]) : static_cast<C>(-INFINITY);
      held_grad[k] = gr && i < length ? from_element<C>(gr[i]) : C(0);
    }
    const std::int64_t beyond = lane + static_cast<std::int64_t>(kHeld) * group;
    C top = 0;
    if constexpr (F::kSubtractsTop) {
      top = held[0];
#pragma unroll
      for (int k = 1; k < kHeld; ++k) top = Larger<C>()(held[k], top);
      for (std::int64_t i = beyond; i < length; i += group) top = Larger<C>()(from_element<C>(xr[i]), top);
      top = fold<kBlock>(top, Larger<C>());
    }
    C sum = 0;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      held[k] -= top;
      if (lane + static_cast<std::int64_t>(k) * group < length) sum += f.term(held[k], held_grad[k]);
    }
    for (std::int64_t i = beyond; i < length; i += group)
      sum += f.term(from_element<C>(xr[i]) - top, gr ? from_element<C>(gr[i]) : C(0));
    const C total = f.total(fold<kBlock>(sum, cuda::Add<C>()));
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const std::int64_t i = lane + static_cast<std::int64_t>(k) * group;
      if (i < length) to[i] = to_element<T>(f.result(held[k], held_grad[k], total));
    }
    for (std::int64_t i = beyond; i < length; i += group)
      to[i] = to_element<T>(f.result(from_element<C>(xr[i]) - top, gr ? from_element<C>(gr[i]) : C(0), total));
  }
}

/// inner > 1: a thread to a slice.
template <typename T, typename C, typename F>
__global__ void columns_kernel(F f, const T* x, const T* grad, T* out, SoftmaxSlices s) {
  for (std::int64_t slice = cuda::global_thread(); slice < s.outer * s.inner; slice += cuda::all_threads()) {
    const std::int64_t base = slice / s.inner * s.length * s.inner + slice % s.inner;
    const auto value = [&](std::int64_t i) { return from_element<C>(x[base + i * s.inner]); };
    const auto incoming = [&](std::int64_t i) { return grad ? from_element<C>(grad[base + i * s.inner]) : C(0); };
    C top = 0;
    if constexpr (F::kSubtractsTop) {
      top = value(0);
      for (std::int64_t i = 1; i < s.length; ++i) top = Larger<C>()(value(i), top);
    }
    C sum = 0;
    for (std::int64_t i = 0; i < s.length; ++i) sum += f.term(value(i) - top, incoming(i));
    const C total = f.total(sum);
    for (std::int64_t i = 0; i < s.length; ++i)
      out[base + i * s.inner] = to_element<T>(f.result(value(i) - top, incoming(i), total));
  }
}

template <template <typename> class F>
void run(const Tensor& x, const Tensor* grad, const Tensor& out, SoftmaxSlices s, bool log) {
  const cuda::Launch launch(out);
  dispatch_floating(x.dtype(), "softmax", [&]<typename T>() {
    using C = compute_t<T>;
    const F<C> f{log};
    const T* from = x.data<T>();
    const T* incoming = grad ? grad->data<T>() : nullptr;
    T* to = out.data<T>();
    if (s.inner > 1) {
      launch(columns_kernel<T, C, F<C>>, cuda::blocks_for(s.outer * s.inner), kThreads, f, from, incoming, to, s);
    } else if (s.length <= kWarpSize * kHeld) {
      launch(rows_kernel<false, T, C, F<C>>, cuda::blocks_for(s.outer, kThreads / kWarpSize), kThreads, f, from,
             incoming, to, s.outer, s.length);
    } else {
      launch(rows_kernel<true, T, C, F<C>>, cuda::blocks_for(s.outer, 1), kThreads, f, from, incoming, to, s.outer,
             s.length);
    }
  });
}

}  // namespace

void softmax_cuda(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log) {
  cuda::require_not_portable("softmax");
  run<Forward>(input, nullptr, output, slices, log);
}

void softmax_backward_cuda(const Tensor& grad, const Tensor& output, const Tensor& grad_input, SoftmaxSlices slices,
                           bool log) {
  cuda::require_not_portable("the gradient of softmax");
  run<Backward>(output, &grad, grad_input, slices, log);
}

}  // namespace lockstep
