#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/gemm.h"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep::cuda::detail {
namespace {

template <typename T>
__global__ void bias_relu_kernel(T* out, const T* bias, Gemm problem) {
  using C = compute_t<T>;
  const std::int64_t matrix = problem.m * problem.n;
  for (std::int64_t i = global_thread(); i < problem.batch * matrix; i += all_threads()) {
    const std::int64_t column = i % problem.n;
    T* element = out + i / matrix * problem.out_batch_stride + i % matrix / problem.n * problem.out_stride + column;
    C value = from_element<C>(*element);
    if (bias) value += from_element<C>(bias[column]);
    if (problem.relu && value < C(0)) value = C(0);
    *element = to_element<T>(value);
  }
}

}  // namespace

void add_bias_relu(const Gemm& problem, int device) {
  const DeviceGuard guard(device);
  dispatch_floating(problem.dtype, "gemm", [&]<typename T>() {
    launch_on(Stream::current(device).handle(), bias_relu_kernel<T>, blocks_for(problem.batch * problem.m * problem.n),
              kThreads, static_cast<T*>(problem.out), static_cast<const T*>(problem.bias), problem);
  });
}

}  // namespace lockstep::cuda::detail
