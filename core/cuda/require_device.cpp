#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"

namespace lockstep::cuda {

bool is_available() {
  return device_count() > 0;
}

void require_device(int index) {
  const int count = device_count();
  LOCKSTEP_CHECK(count > 0, "device cuda:{} cannot be used: {}; use device cpu", index, why_unavailable());
  LOCKSTEP_CHECK(index >= 0 && index < count, "device cuda:{} does not exist; this machine has cuda:0 to cuda:{}",
                 index, count - 1);
  const std::string& obstacle = device_obstacle(index);
  LOCKSTEP_CHECK(obstacle.empty(), "device cuda:{} cannot be used: {}", index, obstacle);
}

}  // namespace lockstep::cuda
