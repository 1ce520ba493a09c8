// Stands for the files that need CUDA, in a build without it.
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/error.h"

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

const std::string& device_obstacle(int) {
  static const std::string none;
  return none;
}

std::string device_name(int index) {
  require_device(index);
  return {};
}

std::string describe_arithmetic(int index) {
  require_device(index);
  return {};
}

std::string device_uuid(int index) {
  require_device(index);
  return {};
}

bool can_access_peer(int from, int to) {
  require_device(from);
  require_device(to);
  return false;
}

bool is_capturing(int) {
  return false;
}

// There is no device, so none of these comes to its end.
Allocator& device_allocator() {
  require_device(0);
  throw Error(why_unavailable());
}

void copy(const Tensor&, const Tensor&) {
  require_device(0);
}
void fill(const Tensor&, Scalar) {
  require_device(0);
}
void store(const void*, void*, std::size_t, int) {
  require_device(0);
}

}  // namespace lockstep::cuda
