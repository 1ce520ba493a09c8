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

/// The n-th piece of work that `device` comes to from now on, the first being number 0, fails with `error`, long after
/// the call that started it has said that all is well. From then on the device does no work, and answers as after
/// fail_device(), which also ends this.
void fail_work(int device, int n, cudaError_t error);
/// Asked by the device before each piece of work; true: it does it no more.
bool work_fails(int device);
/// What calls for this device are answered with.
cudaError_t device_error(int device);

}  // namespace lockstep::cuda::emulated::faults
