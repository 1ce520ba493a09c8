#pragma once

#include <cuda_runtime_api.h>

/// Faults of the emulated device, for tests.
namespace lockstep::cuda::emulated::faults {

/// The n-th allocation of device memory from now on, the first being number 0, and all after it find the device full.
/// Negative: none.
void fail_allocation(int n);
/// Asked by every allocation of device memory.
bool allocation_fails();

/// From now on the device answers every call that starts work or waits with `error`, as a GPU does after an error of a
/// kernel. cudaSuccess: no more, which a real one never says.
void fail_device(cudaError_t error);
cudaError_t device_error();

}  // namespace lockstep::cuda::emulated::faults
