#include "lockstep/core/cuda/check.h"

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/dispatch.cuh"

namespace lockstep::cuda::detail {

void throw_cuda_error(const char* file, int line, const char* expression, cudaError_t status) {
  lockstep::detail::throw_error(fmt::format("CUDA call {} failed at {}:{}: {} ({})", expression, file, line,
                                            cudaGetErrorString(status), cudaGetErrorName(status)));
}

void throw_unsupported_dtype(const char* op, DType dtype) {
  lockstep::detail::throw_error(fmt::format("[{}] is not defined for {} tensors on CUDA devices", op, name(dtype)));
}

}  // namespace lockstep::cuda::detail
