#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/device.h"

namespace lockstep {

/// Counts of one allocator, in bytes. `peak` is the highest `in_use` since reset_peak().
struct AllocatorStats {
  std::size_t in_use = 0;
  std::size_t peak = 0;
  std::size_t cached = 0;  ///< held for reuse, not in use
  std::uint64_t system_allocations = 0;
};

/// Hands out memory of one device type. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `bytes` bytes, aligned to 64; null for 0 bytes. Throws Error that says what was asked, held and free.
  virtual void* allocate(std::size_t bytes, Device device) = 0;
  /// `bytes` is the size given to allocate().
  virtual void deallocate(void* data, std::size_t bytes, Device device) noexcept = 0;
  virtual AllocatorStats stats(Device device) const = 0;
  virtual void reset_peak(Device device) = 0;
  /// Returns cached blocks to the system.
  virtual void empty_cache() = 0;
};

/// The allocator of a device type. Throws Error if this build has none for it.
Allocator& allocator(DeviceType type);

}  // namespace lockstep
