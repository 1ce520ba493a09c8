// Matrix products on the emulated device, which has no cuBLASLt.
#include "lockstep/core/cuda/gemm.h"

#include <cuda_runtime.h>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/dispatch.h"

namespace lockstep::cuda {
namespace {

template <typename T>
void multiply(const Gemm& g, std::int64_t index) {
  using C = compute_t<T>;
  const T* a = static_cast<const T*>(g.a.data) + index * g.a.batch_stride;
  const T* b = static_cast<const T*>(g.b.data) + index * g.b.batch_stride;
  T* out = static_cast<T*>(g.out) + index * g.out_batch_stride;
  const std::int64_t a_row = g.a.transposed ? 1 : g.a.stride, a_column = g.a.transposed ? g.a.stride : 1;
  const std::int64_t b_row = g.b.transposed ? 1 : g.b.stride, b_column = g.b.transposed ? g.b.stride : 1;
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) {
      C sum = 0;
      for (std::int64_t p = 0; p < g.k; ++p)
        sum += static_cast<C>(a[i * a_row + p * a_column]) * static_cast<C>(b[p * b_row + j * b_column]);
      sum *= static_cast<C>(g.alpha);
      T& target = out[i * g.out_stride + j];
      if (g.beta != 0.0) sum += static_cast<C>(g.beta) * static_cast<C>(target);
      if (g.bias) sum += static_cast<C>(static_cast<const T*>(g.bias)[j]);
      if (g.relu && sum < C(0)) sum = 0;
      target = static_cast<T>(sum);
    }
}

}  // namespace

void require_gemm() {}

void gemm(const Gemm& problem, int device) {
  for (const void* data : {problem.a.data, problem.b.data, static_cast<const void*>(problem.out)})
    LOCKSTEP_ASSERT(reinterpret_cast<std::uintptr_t>(data) % kGemmAlignment == 0, "a matrix at {}", data);
  LOCKSTEP_ASSERT(problem.m > 0 && problem.n > 0 && problem.k > 0 && problem.batch > 0, "{} x {} x {}, {} times",
                  problem.m, problem.n, problem.k, problem.batch);
  if (portable()) return detail::gemm_portable(problem, device);
  const DeviceGuard guard(device);
  emulated::enqueue(Stream::current(device).handle(), [problem] {
    dispatch_floating(problem.dtype, "gemm", [&]<typename T>() {
      for (std::int64_t i = 0; i < problem.batch; ++i) multiply<T>(problem, i);
    });
    return true;
  });
}

}  // namespace lockstep::cuda
