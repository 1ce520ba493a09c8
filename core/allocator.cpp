#include "lockstep/core/allocator.h"

#include "lockstep/core/allocator_cpu.h"
#include "lockstep/core/cuda/memory.h"

namespace lockstep {

Allocator& allocator(DeviceType type) {
  return type == kCUDA ? cuda::device_allocator() : cpu_allocator();
}

}  // namespace lockstep
