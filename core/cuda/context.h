#pragma once

namespace lockstep::cuda {

/// Note [Contexts]
/// A process has a context on a device from its first use of it on: some 500 MiB of the device's memory, and where the
/// device is in exclusive mode, nobody else may have one. cudaSetDevice() makes one, and every thread begins on device
/// 0; so a guard that puts the device back which it found would give each rank of a job a context on GPU 0. A thread
/// therefore stays on the device that it was last put on, unless the one before has a context already.

/// True if this process has a context on the device. Makes none.
bool has_context(int device);

/// For what needs some device, no matter which: this thread's present one if it has a context, else the first that has
/// one, else the present one.
int device_with_context();

}  // namespace lockstep::cuda
