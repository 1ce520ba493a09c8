#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/ref_counted.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {

class Computation;

/// While one lives on this thread, addresses are taken by the library: they are not kept beyond the operation, and
/// memory that others see is changed only after Storage::before_change(). See Note [Lent addresses].
class LibraryAccess {
 public:
  /// From here to its end, on this thread and in the loops that it runs. They nest.
  LibraryAccess() : LibraryAccess(true) {}
  /// False: as if there were none, for functions of the user's that the library calls.
  explicit LibraryAccess(bool value) : saved_(std::exchange(active_, value)) {}
  ~LibraryAccess() { active_ = saved_; }
  LibraryAccess(const LibraryAccess&) = delete;
  LibraryAccess& operator=(const LibraryAccess&) = delete;
  /// One lives on this thread.
  static bool active() { return active_; }

 private:
  LOCKSTEP_INITIAL_EXEC static inline thread_local constinit bool active_ = false;
  bool saved_;
};

/// A block of memory on one device, shared by a tensor and its views. Holds bytes, knows no dtype. Its values may be
/// pending: still to be computed, by the first who asks for its address (Note [Pending values] in core/computation.h).
class Storage final : public RefCounted {
 public:
  /// Uninitialised memory from the device's allocator.
  Storage(std::size_t bytes, Device device);
  /// Borrowed memory; `release` (may be empty) runs when the last tensor lets go.
  Storage(void* data, std::size_t bytes, Device device, std::function<void()> release);
  /// Pending: memory and values come from `computation`.
  Storage(std::size_t bytes, Device device, IntrusivePtr<Computation> computation);
  ~Storage();

  /// The address. Computes pending values, and throws what that throws; they stay pending then.
  void* data() const {
    settle();
    if (!LibraryAccess::active()) [[unlikely]]
      lend();
    return data_;
  }
  std::size_t bytes() const { return bytes_; }  ///< its size
  Device device() const { return device_; }     ///< where it is

  /// Computes the values if they are pending.
  void settle() const {
    if (is_pending()) [[unlikely]]
      compute();
  }
  bool is_pending() const { return !ready_.load(std::memory_order_acquire); }  ///< values are still to be computed
  /// What computes or has computed the values; null where that was done at once.
  Computation* computation() const { return computation_.get(); }
  /// Somebody outside of the library has its address, and may write there at any time. See Note [Lent addresses].
  bool is_lent() const { return lent_.load(std::memory_order_relaxed); }

  /// To be called before a change in place: computes what is pending and reads the present values.
  void before_change() const {
    if (readers_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      settle_readers();
  }
  /// Rises with each in-place change; autograd compares it to find saved values that were overwritten.
  std::uint32_t version() const { return version_; }
  /// With a change in place: before_change(), and a new version.
  void bump_version() {
    before_change();
    ++version_;
  }

  // From a free list, since every operation makes one.
  void* operator new(std::size_t bytes);
  void operator delete(void* pointer) noexcept;

 private:
  friend class Computation;
  void compute() const;
  void lend() const;
  void settle_readers() const;
  /// Takes the memory of another of the same size, whose only holder is the caller; the values are not pending then.
  void adopt(Storage& values);

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  std::uint32_t version_ = 0;
  mutable std::atomic<std::uint32_t> readers_{0};  ///< pending computations that read these values
  std::atomic<bool> ready_{true};
  mutable std::atomic<bool> lent_{false};
  bool owned_ = true;
  IntrusivePtr<Computation> computation_;
  std::function<void()> release_;
};

/// Shared by the tensors that are views of it.
using StoragePtr = IntrusivePtr<Storage>;

}  // namespace lockstep
