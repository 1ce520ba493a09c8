#pragma once

#include <string>
#include <string_view>

namespace lockstep {

enum class DeviceType : unsigned char { cpu, cuda };
inline constexpr int kDeviceTypes = 2;

/// Where a tensor lives. CPU indices are *logical* devices: they share the machine's memory and cores, but tensors on
/// different indices do not mix in one operation, so that code for several devices runs, and is tested, without GPUs.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceType type, int index = 0) : type(type), index(index) {}
  /// Parses "cpu", "cuda", "cpu:1", "cuda:0". Throws Error on anything else.
  explicit Device(std::string_view text);

  constexpr bool is_cpu() const { return type == DeviceType::cpu; }
  constexpr bool is_cuda() const { return type == DeviceType::cuda; }
  friend constexpr bool operator==(Device, Device) = default;
};

inline constexpr DeviceType kCPU = DeviceType::cpu;
inline constexpr DeviceType kCUDA = DeviceType::cuda;

std::string_view name(DeviceType type);
/// "cpu:0", "cuda:1".
std::string to_string(Device device);

}  // namespace lockstep
