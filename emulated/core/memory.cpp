#include "lockstep/emulated/core/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <set>

#include "lockstep/core/check.h"
#include "lockstep/emulated/core/faults.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace lockstep::cuda::emulated {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kReserved = std::size_t{1} << 36;  // addresses, no memory
constexpr std::size_t kDeviceBytes = std::size_t{4} << 30;
constexpr std::size_t kContextBytes = std::size_t{530} << 20;

struct Block {
  std::size_t bytes;  // whole pages, with the protected one
  std::size_t asked;
  int device;
};

struct Memory {
  std::mutex mutex;
  char* base = nullptr;
  std::size_t end = 0;  // of what was ever used, from base
  std::map<char*, Block> used;
  std::multimap<std::size_t, char*> free;
  std::map<int, std::size_t> in_use;
  std::set<int> contexts;
  std::map<const char*, std::size_t> pinned;
  int accesses = 0;

  Memory() {
    void* data = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LOCKSTEP_CHECK(data != MAP_FAILED, "the emulated device finds no room for {} addresses", kReserved);
    base = static_cast<char*>(data);
  }

  void protect(int rights) {
    for (const auto& [data, block] : used) mprotect(data, block.bytes - kPage, rights);
  }
};

Memory& memory() {
  static auto* instance = new Memory;  // tensors in static variables may outlive any other
  return *instance;
}

}  // namespace

DeviceAccess::DeviceAccess() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.accesses++ == 0) m.protect(PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (--m.accesses == 0) m.protect(PROT_NONE);
}

void* allocate_device(int device, std::size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (bytes > kDeviceBytes - m.in_use[device] || faults::allocation_fails()) return nullptr;
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage + kPage;
  char* data = nullptr;
  const auto found = m.free.find(pages);
  if (found != m.free.end()) {
    data = found->second;
    m.free.erase(found);
  } else {
    if (m.end + pages > kReserved) return nullptr;
    data = m.base + m.end;
    m.end += pages;
  }
  m.used[data] = {pages, bytes, device};
  m.in_use[device] += bytes;
  if (m.accesses > 0) mprotect(data, pages - kPage, PROT_READ | PROT_WRITE);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  ASAN_POISON_MEMORY_REGION(data + bytes, pages - bytes);
#endif
  return data;
}

bool free_device(void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.used.find(static_cast<char*>(data));
  if (found == m.used.end()) return false;
  const Block block = found->second;
  m.used.erase(found);
  m.in_use[block.device] -= block.asked;
  m.free.emplace(block.bytes, static_cast<char*>(data));
  madvise(data, block.bytes, MADV_DONTNEED);
  mprotect(data, block.bytes, PROT_NONE);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(data, block.bytes);
#endif
  return true;
}

bool is_device(const void* data) {
  Memory& m = memory();
  const auto* at = static_cast<const char*>(data);
  return at >= m.base && at < m.base + kReserved;
}

int device_of(const void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  auto found = m.used.upper_bound(const_cast<char*>(static_cast<const char*>(data)));
  return found == m.used.begin() ? 0 : std::prev(found)->second.device;
}

void device_info(int device, std::size_t* free, std::size_t* total) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  *total = kDeviceBytes;
  *free = kDeviceBytes - m.in_use[device];
}

void use_device(int device) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.contexts.insert(device).second) m.in_use[device] += kContextBytes;
}

bool is_used(int device) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  return m.contexts.contains(device);
}

void* allocate_pinned(std::size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  void* data = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (data) m.pinned[static_cast<char*>(data)] = bytes;
  return data;
}

bool free_pinned(void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.pinned.erase(static_cast<char*>(data)) == 0) return false;
  std::free(data);
  return true;
}

bool is_pinned(const void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto* at = static_cast<const char*>(data);
  auto found = m.pinned.upper_bound(at);
  if (found == m.pinned.begin()) return false;
  --found;
  return at < found->first + found->second;
}

}  // namespace lockstep::cuda::emulated
