#include "core/allocator.h"

#include "core/allocator_cpu.h"
#include "core/cuda/memory.h"

namespace lockstep {

Allocator& allocator(DeviceType type) {
  return type == kCUDA ? cuda::device_allocator() : cpu_allocator();
}

}  // namespace lockstep
