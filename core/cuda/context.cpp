#include "lockstep/core/cuda/context.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/device.h"

namespace lockstep::cuda {
namespace {

// cuDevicePrimaryCtxGetState() of the driver, to which this library is not linked. Null if the driver has none.
using GetState = int (*)(int device, unsigned* flags, int* active);

GetState find_get_state() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t status =
      cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &function, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState>(function) : nullptr;
}

}  // namespace

bool has_context(int device) {
  // A context stays, so what was seen once need not be asked again.
  static std::array<std::atomic<bool>, 64> seen{};
  static const GetState get_state = find_get_state();
  const auto index = static_cast<std::size_t>(device);
  if (index < seen.size() && seen[index].load(std::memory_order_relaxed)) return true;
  unsigned flags = 0;
  int active = 0;
  const bool has = !get_state || (get_state(device, &flags, &active) == 0 && active != 0);
  if (has && index < seen.size()) seen[index].store(true, std::memory_order_relaxed);
  return has;
}

int device_with_context() {
  int present = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDevice(&present));
  if (has_context(present)) return present;
  for (int device = 0; device < device_count(); ++device)
    if (has_context(device)) return device;
  return present;
}

}  // namespace lockstep::cuda
