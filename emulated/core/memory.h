#pragma once

#include <cstddef>

namespace lockstep::cuda::emulated {

/// Device memory: pages that the host may touch while a DeviceAccess lives.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
};

/// Null if the device is full. A protected page follows the memory.
void* allocate_device(int device, std::size_t bytes);
/// False if nothing is allocated at `data`.
bool free_device(void* data);
bool is_device(const void* data);
/// 0 for other memory.
int device_of(const void* data);
void device_info(int device, std::size_t* free, std::size_t* total);

/// The process uses the device: its context takes memory there, from the first time on.
void use_device(int device);
bool is_used(int device);

/// Page-locked memory of the host.
void* allocate_pinned(std::size_t bytes);
bool free_pinned(void* data);
bool is_pinned(const void* data);

}  // namespace lockstep::cuda::emulated
