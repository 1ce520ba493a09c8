#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "lockstep/core/allocator.h"

namespace lockstep::cuda {

/// A stream or an event, as the driver names it.
using Handle = void*;

/// What CachingAllocator needs of a device's driver. Not the driver itself, so that its rules are tested without one.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Null if the device has too little memory left; throws Error for any other failure.
  virtual void* allocate(int device, std::size_t bytes) = 0;
  virtual void release(int device, void* data) noexcept = 0;
  struct Info {
    std::size_t free = 0;
    std::size_t total = 0;
  };
  virtual Info info(int device) = 0;
  /// The stream that work of this thread goes to.
  virtual Handle current_stream(int device) = 0;
  /// True while work put on the stream is recorded instead of done; an event recorded there then is the graph's, and
  /// cannot be asked about.
  virtual bool is_capturing(int device, Handle stream) = 0;
  /// An event that is done when all work put on the stream so far is.
  virtual Handle record(int device, Handle stream) = 0;
  virtual bool is_done(int device, Handle event) = 0;
  /// Blocks until it is done.
  virtual void wait(int device, Handle event) = 0;
  virtual void destroy(Handle event) noexcept = 0;
};

/// Note [CUDA memory]
/// Asking a driver for memory takes long and waits for the device, so memory is taken in segments and kept. A block
/// belongs to the stream that was current when it was allocated, and a freed block is handed out again at once, but to
/// that stream alone: what is still queued there ran, or will run, before whatever uses the block next. A tensor that
/// another stream uses must be told so with record_stream(); its block then comes back only after an event on that
/// stream, which is recorded when the tensor goes, or, if the stream is being captured then, after the capture.
///
/// Sizes are rounded up to 512 bytes. Blocks up to 1 MiB are cut from segments of 2 MiB, larger ones below 10 MiB from
/// segments of 20 MiB, others get a segment of their own size, rounded to 2 MiB. The smallest free block that fits is
/// taken, what is left of it is split off, and free neighbours are joined again. When the device is full, segments
/// without a block in use are returned and the request is tried once more. After the allocator of PyTorch (c10).
///
/// A captured graph has a stream of its own: nobody else gets the memory that its capture allocated and freed, and
/// hold_stream() keeps it.
class CachingAllocator final : public Allocator {
 public:
  /// `memory` serves the devices 0 to `devices` - 1.
  CachingAllocator(std::unique_ptr<DeviceMemory> memory, int devices);
  ~CachingAllocator() override;

  void* allocate(std::size_t bytes, Device device) override;
  void deallocate(void* data, std::size_t bytes, Device device) noexcept override;
  AllocatorStats stats(Device device) const override;
  void reset_peak(Device device) override;
  /// Returns what is cached on all devices to the driver; waits for events of blocks that other streams used.
  void empty_cache() override;

  /// The block at `data`, which may point into it, is used by `stream` too: after its deallocation it waits for what is
  /// on that stream then. Throws Error for memory that this allocator did not give out.
  void record_stream(const void* data, Device device, Handle stream);

  /// From here to release_stream(), segments of the stream's blocks are not returned to the driver. Calls nest.
  void hold_stream(Device device, Handle stream);
  void release_stream(Device device, Handle stream);

 private:
  struct Block {
    char* data = nullptr;
    std::size_t bytes = 0;
    Handle stream = nullptr;
    bool small = false;  // of a segment for small blocks
    bool in_use = false;
    Block* previous = nullptr;  // neighbours in the segment
    Block* next = nullptr;
    std::vector<Handle> other_streams;
    int pending_events = 0;
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  struct Waiting {
    Handle stream;  // which used the block
    Handle event;   // null: not recorded yet, as the stream was being captured
    Block* block;
  };
  struct Pool {
    std::map<const char*, std::unique_ptr<Block>> blocks;  // all of this device, by address
    std::set<Block*, BySize> small;                        // free ones
    std::set<Block*, BySize> large;
    std::vector<Waiting> waiting;
    std::map<Handle, int> held_streams;
    AllocatorStats stats;
    std::size_t held = 0;
  };

  Pool& pool(Device device, const char* what);
  std::set<Block*, BySize>& free_blocks(Pool& pool, bool small);
  Block* take_free(Pool& pool, std::size_t bytes, Handle stream);
  Block* take_segment(Pool& pool, int device, std::size_t bytes, Handle stream);
  void split(Pool& pool, Block* block, std::size_t bytes);
  void make_free(Pool& pool, Block* block);
  void join_next(Pool& pool, Block* block);
  bool is_over(int device, Waiting& waiting, bool wait);
  void collect(Pool& pool, int device, bool wait);
  void return_segments(Pool& pool, int device);
  [[noreturn]] void throw_out_of_memory(const Pool& pool, int device, std::size_t bytes) const;

  std::unique_ptr<DeviceMemory> memory_;
  mutable std::mutex mutex_;
  std::vector<Pool> pools_;
};

}  // namespace lockstep::cuda
