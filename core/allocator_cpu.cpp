#include "lockstep/core/allocator_cpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/fork_handlers.h"
#include "lockstep/core/large_blocks.h"
#include "lockstep/core/thread_pool.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_NO_MEMORY_CACHE
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_NO_MEMORY_CACHE
#endif

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallest = 256;
#if defined(LOCKSTEP_NO_MEMORY_CACHE)
constexpr bool kCache = false;  // reuse would hide errors from the sanitizer
#else
constexpr bool kCache = true;
#endif

// Four classes to each power of two, of large blocks sixteen: at most 25 % and 6.25 % of a block are wasted.
constexpr int kSmallestTop = std::bit_width(kSmallest) - 1;
constexpr int kLargeTop = 16;  // blocks of more than 2^16 bytes are large
constexpr std::size_t kStepsSmall = 4, kStepsLarge = 16;
constexpr std::size_t kSmallClasses = static_cast<std::size_t>(kLargeTop - kSmallestTop) * kStepsSmall;

struct SizeClass {
  std::size_t index;
  std::size_t bytes;
};

SizeClass size_class(std::size_t bytes) {
  if (!kCache) return {0, bytes};  // so that the sanitizer sees the first byte beyond
  if (bytes <= kSmallest) return {0, kSmallest};
  const int top = std::bit_width(bytes - 1) - 1;  // 2^top < bytes <= 2^(top+1)
  const bool large = top >= kLargeTop;
  const std::size_t floor = std::size_t{1} << top, step = floor / (large ? kStepsLarge : kStepsSmall);
  const std::size_t steps = (bytes - floor + step - 1) / step;  // from 1
  const std::size_t before = large ? kSmallClasses + static_cast<std::size_t>(top - kLargeTop) * kStepsLarge
                                   : static_cast<std::size_t>(top - kSmallestTop) * kStepsSmall;
  return {before + steps, floor + steps * step};
}

// The bytes of a class's blocks: the inverse of size_class().
std::size_t class_bytes(std::size_t index) {
  if (index == 0) return kSmallest;
  const bool large = index > kSmallClasses;
  const std::size_t at = index - 1 - (large ? kSmallClasses : 0), count = large ? kStepsLarge : kStepsSmall;
  const std::size_t floor = (large ? std::size_t{1} << kLargeTop : kSmallest) << at / count;
  return floor + (at % count + 1) * (floor / count);
}

constexpr std::size_t kSlack = std::size_t{64} << 20;

/// Note [Memory of loops]
/// What a block of a parallel_for allocates and frees is the thread's own for the time: it is kept for that thread's
/// next block, whose core has it in its caches. From a common list the next to ask may be the other core, which has to
/// fetch every line from there before it writes; where the two share no cache that costs as much as lenet's scratch
/// takes to compute. Only what a core's caches hold is worth keeping, and the rest goes to the common list.
///
/// Such blocks remain counted as in use by the list: stats() takes them off, and they stay in the peak.
class alignas(128) LoopBlocks {
 public:
  void* take(std::size_t index) {
    const std::lock_guard lock(*this);
    for (std::size_t i = count_; i-- > 0;)
      if (kept_[i].index == index) {
        void* const data = kept_[i].data;
        kept_[i] = kept_[--count_];
        bytes_ -= class_bytes(index);
        return data;
      }
    return nullptr;
  }
  /// False if there is no room.
  bool keep(void* data, std::size_t index, std::size_t bytes) {
    const std::lock_guard lock(*this);
    if (count_ == kept_.size() || bytes_ + bytes > kMostBytes) return false;
    kept_[count_++] = {data, index};
    bytes_ += bytes;
    return true;
  }
  std::size_t bytes() {
    const std::lock_guard lock(*this);
    return bytes_;
  }
  /// Calls release(data, class) for all that is kept, and keeps nothing.
  template <typename Release>
  void clear(Release release) {
    const std::lock_guard lock(*this);
    for (; count_ > 0; --count_) release(kept_[count_ - 1].data, kept_[count_ - 1].index);
    bytes_ = 0;
  }
  // The thread itself meets only those who clear or count, for a moment. Not a mutex: around fork() all of them are
  // held, more than Thread Sanitizer follows.
  void lock() {
    while (held_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { held_.clear(std::memory_order_release); }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  struct Kept {
    void* data;
    std::size_t index;
  };
  std::atomic_flag held_;
  std::size_t count_ = 0, bytes_ = 0;
  std::array<Kept, 16> kept_;
};

class CachingAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes, Device) override {
    if (bytes == 0) return nullptr;
    LOCKSTEP_CHECK(bytes <= (std::size_t{1} << 46), "a tensor of {} bytes was asked for; the limit is 2^46", bytes);
    const SizeClass size = size_class(bytes);
    LoopBlocks* const own = of_this_loop();
    if (void* const kept = own ? own->take(size.index) : nullptr) return kept;
    {
      const std::lock_guard lock(mutex_);
      FreeBlocks& free = free_[size.index];
      free.last_use = ++uses_;
      if (kCache && !free.blocks.empty()) {
        void* data = free.blocks.back();
        free.blocks.pop_back();
        stats_.cached -= size.bytes;
        count(size.bytes);
        return data;
      }
      make_room(size.bytes);
    }
    void* data = system_allocate(size.bytes);
    if (!data) {
      empty_cache();
      data = system_allocate(size.bytes);
    }
    const std::lock_guard lock(mutex_);
    if (!data)
      detail::throw_error(
          fmt::format("out of memory on the CPU: {} bytes were asked for, {} bytes are in use by tensors; use a "
                      "smaller batch or model",
                      bytes, stats_.in_use));
    ++stats_.system_allocations;
    count(size.bytes);
    return data;
  }

  void deallocate(void* data, std::size_t bytes, Device) noexcept override {
    if (!data) return;
    const SizeClass size = size_class(bytes);
    if (LoopBlocks* const own = of_this_loop(); own && own->keep(data, size.index, size.bytes)) return;
    {
      const std::lock_guard lock(mutex_);
      stats_.in_use -= size.bytes;
      if (kCache) {
        try {
          free_[size.index].blocks.push_back(data);
          stats_.cached += size.bytes;
          return;
        } catch (const std::bad_alloc&) {
          // No room for the book-keeping: give the block back instead.
        }
      }
    }
    system_free(data, size.bytes);
  }

  AllocatorStats stats(Device) const override {
    const std::lock_guard lock(mutex_);
    AllocatorStats stats = stats_;
    for (LoopBlocks& own : own_) {
      const std::size_t kept = own.bytes();
      stats.in_use -= kept;
      stats.cached += kept;
    }
    return stats;
  }

  void reset_peak(Device) override {
    const std::lock_guard lock(mutex_);
    free_loops_blocks();
    stats_.peak = stats_.in_use;
  }

  void empty_cache() override {
    const std::lock_guard lock(mutex_);
    free_loops_blocks();
    for (std::size_t i = 0; i < free_.size(); ++i) {
      for (void* block : free_[i].blocks) system_free(block, class_bytes(i));
      free_[i].blocks.clear();
    }
    stats_.cached = 0;
    most_in_use_ = stats_.in_use;
  }

  // Around fork(), so that the child, which has none of the other threads, finds the lock free and the lists whole.
  void lock() {
    mutex_.lock();
    for (LoopBlocks& own : own_) own.lock();
  }
  void unlock() {
    for (LoopBlocks& own : own_) own.unlock();
    mutex_.unlock();
  }

 private:
  struct FreeBlocks {
    std::vector<void*> blocks;
    std::uint64_t last_use = 0;
  };

  static bool is_large(std::size_t bytes) { return kCache && bytes >= detail::kLargeBlock; }
  static void* system_allocate(std::size_t bytes) {
    if (is_large(bytes)) return detail::allocate_large_block(bytes);
    void* data = nullptr;
    return posix_memalign(&data, kAlignment, bytes) == 0 ? data : nullptr;
  }
  static void system_free(void* data, std::size_t bytes) {
    if (is_large(bytes))
      detail::free_large_block(data, bytes);
    else
      std::free(data);
  }

  /// Null outside of loops, and for threads beyond those that have a place.
  LoopBlocks* of_this_loop() {
    const int thread = kCache ? loop_thread() : -1;
    return thread >= 0 && static_cast<std::size_t>(thread) < own_.size() ? &own_[static_cast<std::size_t>(thread)]
                                                                         : nullptr;
  }
  void free_loops_blocks() {
    for (LoopBlocks& own : own_)
      own.clear([this](void* data, std::size_t index) {
        system_free(data, class_bytes(index));
        stats_.in_use -= class_bytes(index);
      });
  }

  void count(std::size_t bytes) {
    stats_.in_use += bytes;
    stats_.peak = std::max(stats_.peak, stats_.in_use);
    most_in_use_ = std::max(most_in_use_, stats_.in_use);
  }

  /// Gives cached blocks back until `bytes` more keep within the bound.
  void make_room(std::size_t bytes) {
    const std::size_t wanted = stats_.in_use + bytes;
    const std::size_t bound = 2 * std::max(most_in_use_, wanted) + kSlack;
    while (stats_.cached > 0 && wanted + stats_.cached > bound) {
      std::size_t oldest = free_.size();
      for (std::size_t i = 0; i < free_.size(); ++i)
        if (!free_[i].blocks.empty() && (oldest == free_.size() || free_[i].last_use < free_[oldest].last_use))
          oldest = i;
      system_free(free_[oldest].blocks.back(), class_bytes(oldest));
      free_[oldest].blocks.pop_back();
      stats_.cached -= class_bytes(oldest);
    }
  }

  mutable std::mutex mutex_;
  AllocatorStats stats_;
  std::size_t most_in_use_ = 0;  ///< since the cache was emptied
  std::uint64_t uses_ = 0;
  std::array<FreeBlocks, 544> free_;  ///< by class, up to the limit of allocate()
  mutable std::array<LoopBlocks, 64> own_;
};

CachingAllocator& the_allocator() {
  static auto* allocator = new CachingAllocator;
  return *allocator;
}

const ForkHandlers fork_handlers([] { the_allocator().lock(); }, [] { the_allocator().unlock(); },
                                 [] { the_allocator().unlock(); });

}  // namespace

Allocator& cpu_allocator() {
  return the_allocator();
}

}  // namespace lockstep
