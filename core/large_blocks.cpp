#include "lockstep/core/large_blocks.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "lockstep/core/environment.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kHugePage = kLargeBlock;
constexpr std::size_t kMostPage = std::size_t{64} << 10;  // of a system's small pages
constexpr std::size_t kBeginnings = 8, kApart = 4096;     // mapped blocks begin at multiples of kApart, others never
constexpr std::size_t kAlignment = 64;
constexpr int kMostMapped = 8192;

std::atomic<int> mapped_blocks = 0;

std::size_t mapped_bytes(std::size_t bytes) {
  return (bytes + kBeginnings * kApart + kMostPage - 1) / kMostPage * kMostPage;
}

void* map_block(std::size_t bytes) {
  static std::atomic<std::size_t> blocks = 0;
  const std::size_t size = mapped_bytes(bytes), whole = size + kHugePage;
  void* const mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const first = static_cast<char*>(mapped);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
  char* const block = first + before;
  if (before > 0) munmap(first, before);
  if (whole > before + size) munmap(block + size, whole - before - size);
  madvise(block, size, MADV_HUGEPAGE);  // if the system will not, the pages are small
  return block + blocks.fetch_add(1, std::memory_order_relaxed) % kBeginnings * kApart;
}

bool wants_huge_pages() {
  static const bool wants = environment_flag("LOCKSTEP_HUGE_PAGES", /*unset=*/true);
  return wants;
}

}  // namespace

void* allocate_large_block(std::size_t bytes) {
  if (wants_huge_pages()) {
    if (mapped_blocks.fetch_add(1) < kMostMapped)
      if (void* const data = map_block(bytes)) return data;
    mapped_blocks.fetch_sub(1);
  }
  void* const data = std::aligned_alloc(kApart, (bytes + kAlignment + kApart - 1) / kApart * kApart);
  return data ? static_cast<char*>(data) + kAlignment : nullptr;
}

void free_large_block(void* data, std::size_t bytes) {
  char* const at = static_cast<char*>(data);
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  if (address % kApart != 0) return std::free(at - kAlignment);
  munmap(at - address % kHugePage, mapped_bytes(bytes));
  mapped_blocks.fetch_sub(1);
}

}  // namespace lockstep::detail
