#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Where memory is and kernels run.
enum class DeviceType : unsigned char { cpu, cuda };
inline constexpr int kDeviceTypes = 2;  ///< number of values of DeviceType

/// Where a tensor lives. CPU indices are *logical* devices: they share the machine's memory and cores, but tensors on
/// different indices do not mix in one operation, so that code for several devices runs, and is tested, without GPUs.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< kind of device
  int index = 0;                      ///< which of its kind, from 0

  constexpr Device() = default;
  constexpr Device(DeviceType kind, int number = 0) : type(kind), index(number) {}
  /// Parses "cpu", "cuda", "cpu:1", "cuda:0". Throws Error on anything else.
  explicit Device(std::string_view text);

  constexpr bool is_cpu() const { return type == DeviceType::cpu; }    ///< memory of the host
  constexpr bool is_cuda() const { return type == DeviceType::cuda; }  ///< memory of a GPU
  friend constexpr bool operator==(Device, Device) = default;
};

inline constexpr DeviceType kCPU = DeviceType::cpu;    ///< the CPU, under libtorch's name
inline constexpr DeviceType kCUDA = DeviceType::cuda;  ///< a CUDA device, under libtorch's name

/// "cpu", "cuda".
std::string_view name(DeviceType type);
/// "cpu:0", "cuda:1".
std::string to_string(Device device);

namespace cuda {
/// CUDA devices of this machine, of which some may be too old to be used; 0 in builds without CUDA.
int device_count();
/// Whether there is one.
bool is_available();
}  // namespace cuda

}  // namespace lockstep
