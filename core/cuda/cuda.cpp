#include "lockstep/core/cuda/cuda.h"

#include "lockstep/core/cuda/memory.h"

namespace lockstep::cuda {
namespace {

AllocatorStats stats_of(int device) {
  require_device(device);
  return device_allocator().stats({kCUDA, device});
}

}  // namespace

std::size_t memory_allocated(int device) {
  return stats_of(device).in_use;
}
std::size_t max_memory_allocated(int device) {
  return stats_of(device).peak;
}
std::size_t memory_cached(int device) {
  return stats_of(device).cached;
}
void reset_peak_memory(int device) {
  require_device(device);
  device_allocator().reset_peak({kCUDA, device});
}
void empty_cache() {
  if (is_available()) device_allocator().empty_cache();
}

}  // namespace lockstep::cuda
