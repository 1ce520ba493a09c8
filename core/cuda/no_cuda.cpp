// Stands for device.cpp in a build without CUDA.
#include "core/cuda/device.h"

namespace lockstep::cuda {

bool is_built() {
  return false;
}
int device_count() {
  return 0;
}
std::string why_unavailable() {
  return "this build of lockstep has no CUDA";
}

std::string device_name(int index) {
  require_device(index);
  return {};
}

bool can_access_peer(int from, int to) {
  require_device(from);
  require_device(to);
  return false;
}

}  // namespace lockstep::cuda
