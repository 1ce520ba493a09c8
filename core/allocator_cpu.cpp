#include "lockstep/core/allocator_cpu.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "lockstep/core/check.h"

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

// Four classes to each power of two: at most 25 % of a block is wasted.
struct SizeClass {
  std::size_t index;
  std::size_t bytes;
};

SizeClass size_class(std::size_t bytes) {
  if (bytes <= kSmallest) return {0, kSmallest};
  const int top = std::bit_width(bytes - 1) - 1;  // 2^top < bytes <= 2^(top+1)
  const std::size_t quarter = std::size_t{1} << (top - 2);
  const std::size_t steps = (bytes - (std::size_t{1} << top) + quarter - 1) / quarter;  // 1 .. 4
  return {static_cast<std::size_t>(top - 8) * 4 + steps, (std::size_t{1} << top) + steps * quarter};
}

class CachingAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes, Device) override {
    if (bytes == 0) return nullptr;
    LOCKSTEP_CHECK(bytes <= (std::size_t{1} << 46), "a tensor of {} bytes was asked for; the limit is 2^46", bytes);
    const SizeClass size = size_class(bytes);
    {
      std::lock_guard lock(mutex_);
      stats_.in_use += size.bytes;
      stats_.peak = std::max(stats_.peak, stats_.in_use);
      if (kCache && !free_[size.index].empty()) {
        void* data = free_[size.index].back();
        free_[size.index].pop_back();
        stats_.cached -= size.bytes;
        return data;
      }
      ++stats_.system_allocations;
    }
    void* data = system_allocate(size.bytes);
    if (!data) {
      empty_cache();
      data = system_allocate(size.bytes);
    }
    if (!data) throw_out_of_memory(bytes, size.bytes);
    return data;
  }

  void deallocate(void* data, std::size_t bytes, Device) noexcept override {
    if (!data) return;
    const SizeClass size = size_class(bytes);
    {
      std::lock_guard lock(mutex_);
      stats_.in_use -= size.bytes;
      if (kCache) {
        try {
          free_[size.index].push_back(data);
          stats_.cached += size.bytes;
          return;
        } catch (const std::bad_alloc&) {
          // No room for the book-keeping: give the block back instead.
        }
      }
    }
    std::free(data);
  }

  AllocatorStats stats(Device) const override {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak(Device) override {
    std::lock_guard lock(mutex_);
    stats_.peak = stats_.in_use;
  }

  void empty_cache() override {
    std::lock_guard lock(mutex_);
    for (auto& blocks : free_) {
      for (void* block : blocks) std::free(block);
      blocks.clear();
    }
    stats_.cached = 0;
  }

 private:
  static void* system_allocate(std::size_t bytes) { return std::aligned_alloc(kAlignment, bytes); }

  [[noreturn]] void throw_out_of_memory(std::size_t asked, std::size_t block) {
    std::lock_guard lock(mutex_);
    stats_.in_use -= block;
    detail::throw_error(
        fmt::format("out of memory on the CPU: {} bytes were asked for, {} bytes are in use by tensors; use a smaller "
                    "batch or model",
                    asked, stats_.in_use));
  }

  mutable std::mutex mutex_;
  AllocatorStats stats_;
  std::array<std::vector<void*>, 160> free_;
};

}  // namespace

Allocator& cpu_allocator() {
  static auto* allocator = new CachingAllocator;
  return *allocator;
}

}  // namespace lockstep
