#include "lockstep/core/cuda/check.h"

#include "lockstep/core/check.h"

namespace lockstep::cuda::detail {

void throw_cuda_error(const char* file, int line, const char* expression, cudaError_t status) {
  lockstep::detail::throw_error(fmt::format("CUDA call {} failed at {}:{}: {} ({})", expression, file, line,
                                            cudaGetErrorString(status), cudaGetErrorName(status)));
}

}  // namespace lockstep::cuda::detail
