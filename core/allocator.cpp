#include "core/allocator.h"

#include <atomic>

#include "core/allocator_cpu.h"
#include "core/check.h"

namespace lockstep {
namespace {

std::atomic<Allocator*>& slot(DeviceType type) {
  static std::atomic<Allocator*> slots[kDeviceTypes] = {&cpu_allocator(), nullptr};
  return slots[static_cast<int>(type)];
}

}  // namespace

Allocator& allocator(DeviceType type) {
  Allocator* found = slot(type).load(std::memory_order_acquire);
  LOCKSTEP_CHECK(found, "there is no memory allocator for {} devices in this build", name(type));
  return *found;
}

void set_allocator(DeviceType type, Allocator* allocator) {
  slot(type).store(allocator, std::memory_order_release);
}

}  // namespace lockstep
