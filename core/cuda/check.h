#pragma once

// The check macro of every CUDA call. For .cpp and .cu files only.

#include <cuda_runtime_api.h>

namespace lockstep::cuda::detail {

[[noreturn]] void throw_cuda_error(const char* file, int line, const char* expression, cudaError_t status);

}  // namespace lockstep::cuda::detail

/// Throws lockstep::Error with the expression, file:line and CUDA's own words unless the call returned cudaSuccess.
#define LOCKSTEP_CUDA_CHECK(expression)                                                             \
  do {                                                                                              \
    const cudaError_t lockstep_status = (expression);                                               \
    if (lockstep_status != cudaSuccess) [[unlikely]]                                                \
      ::lockstep::cuda::detail::throw_cuda_error(__FILE__, __LINE__, #expression, lockstep_status); \
  } while (false)

/// The same for the kernel launch just before it.
#define LOCKSTEP_CUDA_CHECK_LAUNCH() LOCKSTEP_CUDA_CHECK(cudaGetLastError())
