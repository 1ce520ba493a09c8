#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "lockstep/core/device.h"
#include "lockstep/core/ref_counted.h"

namespace lockstep {

/// A block of memory on one device, shared by a tensor and its views. Holds bytes, knows no dtype.
class Storage final : public RefCounted {
 public:
  /// Uninitialised memory from the device's allocator.
  Storage(std::size_t bytes, Device device);
  /// Borrowed memory; `release` (may be empty) runs when the last tensor lets go.
  Storage(void* data, std::size_t bytes, Device device, std::function<void()> release);
  ~Storage();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }  ///< its size
  Device device() const { return device_; }     ///< where it is

  /// Rises with each in-place change; autograd compares it to find saved values that were overwritten.
  std::uint32_t version() const { return version_; }
  void bump_version() { ++version_; }  ///< after a change in place

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  std::uint32_t version_ = 0;
  bool owned_ = true;
  std::function<void()> release_;
};

/// Shared by the tensors that are views of it.
using StoragePtr = IntrusivePtr<Storage>;

}  // namespace lockstep
