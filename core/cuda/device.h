#pragma once

#include <string>

namespace lockstep::cuda {

/// True if this library was built with CUDA. The build runs on machines without a GPU or driver too.
bool is_built();
/// Number of CUDA devices; 0 in a CPU build, without a driver, or without a GPU. Never throws.
int device_count();
/// True if there is at least one device.
bool is_available();
/// Why device_count() is 0, as part of a sentence: "this build of lockstep has no CUDA"; empty if there is a device.
std::string why_unavailable();
/// Why a device 0 <= index < device_count() cannot be used, as part of a sentence: this build has no code for it; empty
/// if it can.
const std::string& device_obstacle(int index);
/// The product's name, such as "NVIDIA H100 80GB HBM3". Throws Error, saying why, if there is no device `index`.
std::string device_name(int index);
/// The device's own name in the world: "GPU-" and its UUID, as nvidia-smi gives it. Throws as device_name().
std::string device_uuid(int index);
/// What the bits of results depend on beside its name: "NVIDIA H100 80GB HBM3 (9.0), driver 12.8, runtime 12.6, TF32
/// off". Throws as device_name().
std::string describe_arithmetic(int index);
/// True if device `from` can read and write the memory of `to` without the host. Throws as device_name().
bool can_access_peer(int from, int to);
/// True while this thread's work on the device is recorded for a graph instead of done.
bool is_capturing(int device);
/// Throws Error, saying why, unless 0 <= index < device_count() and the device can be used.
void require_device(int index);

}  // namespace lockstep::cuda
