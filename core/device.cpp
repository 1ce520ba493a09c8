#include "lockstep/core/device.h"

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"

namespace lockstep {

Device::Device(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  bool ok = kind == "cpu" || kind == "cuda";
  type = kind == "cuda" ? kCUDA : kCPU;
  if (ok && colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto number = parse_number<int>(digits);
    ok = number && *number >= 0;
    if (ok) index = *number;
  }
  LOCKSTEP_CHECK(ok, "device '{}' is not understood; expected cpu, cuda, cpu:N or cuda:N", text);
}

std::string_view name(DeviceType type) {
  return type == kCPU ? "cpu" : "cuda";
}

std::string to_string(Device device) {
  return fmt::format("{}:{}", name(device.type), device.index);
}

}  // namespace lockstep
