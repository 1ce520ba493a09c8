#include "lockstep/core/cuda/caching_allocator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::cuda {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kRounding = 512;
constexpr std::size_t kSmall = kMiB;  // at most this: from small segments
constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kOwnSegment = 10 * kMiB;  // from here on: a segment of its own
constexpr std::size_t kLargeSegment = 20 * kMiB;
constexpr std::size_t kSegmentRounding = 2 * kMiB;

std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

std::size_t segment_bytes(std::size_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes < kOwnSegment ? kLargeSegment : round_up(bytes, kSegmentRounding);
}

std::string in_mib(std::size_t bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
}

}  // namespace

bool CachingAllocator::BySize::operator()(const Block* a, const Block* b) const {
  if (a->stream != b->stream) return std::less<Handle>()(a->stream, b->stream);
  if (a->bytes != b->bytes) return a->bytes < b->bytes;
  return std::less<const char*>()(a->data, b->data);
}

CachingAllocator::CachingAllocator(std::unique_ptr<DeviceMemory> memory, int devices) : memory_(std::move(memory)) {
  for (int i = 0; i < devices; ++i) pools_.emplace_back();
}

CachingAllocator::~CachingAllocator() {
  // Memory in use stays with whoever uses it; the rest goes back.
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    for (const Waiting& waiting : pools_[i].waiting)
      if (waiting.event) memory_->destroy(waiting.event);
    return_segments(pools_[i], static_cast<int>(i));
  }
}

CachingAllocator::Pool& CachingAllocator::pool(Device device, const char* what) {
  LOCKSTEP_CHECK(device.is_cuda() && device.index >= 0 && device.index < static_cast<int>(pools_.size()),
                 "[{}] there is no device {}; found {} CUDA device(s)", what, to_string(device), pools_.size());
  return pools_[static_cast<std::size_t>(device.index)];
}

std::set<CachingAllocator::Block*, CachingAllocator::BySize>& CachingAllocator::free_blocks(Pool& pool, bool small) {
  return small ? pool.small : pool.large;
}

void* CachingAllocator::allocate(std::size_t bytes, Device device) {
  const std::lock_guard lock(mutex_);
  Pool& p = pool(device, "allocate");
  if (bytes == 0) return nullptr;
  LOCKSTEP_CHECK(bytes <= (std::size_t{1} << 62), "[allocate] {} bytes are more than any device has", bytes);
  const std::size_t rounded = round_up(bytes, kRounding);
  const Handle stream = memory_->current_stream(device.index);
  const bool capturing = memory_->is_capturing(device.index, stream);
  if (!capturing) collect(p, device.index, /*wait=*/false);
  Block* block = take_free(p, rounded, stream);
  if (!block) block = take_segment(p, device.index, rounded, stream);
  if (!block && !capturing) {
    collect(p, device.index, /*wait=*/true);
    return_segments(p, device.index);
    block = take_segment(p, device.index, rounded, stream);
  }
  if (!block) throw_out_of_memory(p, device.index, rounded);
  split(p, block, rounded);
  block->in_use = true;
  p.stats.in_use += block->bytes;
  p.stats.peak = std::max(p.stats.peak, p.stats.in_use);
  p.stats.cached = p.held - p.stats.in_use;
  return block->data;
}

CachingAllocator::Block* CachingAllocator::take_free(Pool& pool, std::size_t bytes, Handle stream) {
  auto& free = free_blocks(pool, bytes <= kSmall);
  Block wanted;
  wanted.stream = stream;
  wanted.bytes = bytes;
  const auto found = free.lower_bound(&wanted);
  if (found == free.end() || (*found)->stream != stream) return nullptr;
  Block* const block = *found;
  // A large segment is not broken up for a block that would leave most of it unusable for its like.
  if (bytes > kSmall && block->bytes >= 2 * kLargeSegment && bytes < block->bytes / 2) return nullptr;
  free.erase(found);
  return block;
}

CachingAllocator::Block* CachingAllocator::take_segment(Pool& pool, int device, std::size_t bytes, Handle stream) {
  const std::size_t size = segment_bytes(bytes);
  void* const data = memory_->allocate(device, size);
  if (!data) return nullptr;
  auto block = std::make_unique<Block>();
  block->data = static_cast<char*>(data);
  block->bytes = size;
  block->stream = stream;
  block->small = bytes <= kSmall;
  pool.held += size;
  ++pool.stats.system_allocations;
  Block* const result = block.get();
  pool.blocks.emplace(result->data, std::move(block));
  return result;
}

void CachingAllocator::split(Pool& pool, Block* block, std::size_t bytes) {
  const std::size_t rest = block->bytes - bytes;
  // Of a small segment every rest is of use, of a large one only what another large block fits into.
  if (rest < (block->small ? kRounding : kSmall + kRounding)) return;
  auto tail = std::make_unique<Block>();
  tail->data = block->data + bytes;
  tail->bytes = rest;
  tail->stream = block->stream;
  tail->small = block->small;
  tail->previous = block;
  tail->next = block->next;
  if (tail->next) tail->next->previous = tail.get();
  block->next = tail.get();
  block->bytes = bytes;
  free_blocks(pool, block->small).insert(tail.get());
  const char* const key = tail->data;
  pool.blocks.emplace(key, std::move(tail));
}

void CachingAllocator::deallocate(void* data, std::size_t, Device device) noexcept {
  if (!data) return;
  const std::lock_guard lock(mutex_);
  Pool& p = pools_[static_cast<std::size_t>(device.index)];
  Block* const block = p.blocks.find(static_cast<const char*>(data))->second.get();
  block->in_use = false;
  p.stats.in_use -= block->bytes;
  p.stats.cached = p.held - p.stats.in_use;
  try {
    for (const Handle stream : std::exchange(block->other_streams, {})) {
      const bool captured = memory_->is_capturing(device.index, stream);
      p.waiting.push_back({stream, captured ? nullptr : memory_->record(device.index, stream), block});
      ++block->pending_events;
    }
    if (block->pending_events == 0) make_free(p, block);
  } catch (...) {
    ++block->pending_events;  // the device has failed, and nobody can say when the others are done: never used again
  }
}

void CachingAllocator::make_free(Pool& pool, Block* block) {
  const auto is_free = [](const Block* other) { return other && !other->in_use && other->pending_events == 0; };
  const auto forget = [&](Block* other) {
    pool.small.erase(other);
    pool.large.erase(other);
  };
  if (is_free(block->next)) {
    forget(block->next);
    join_next(pool, block);
  }
  if (is_free(block->previous)) {
    block = block->previous;
    forget(block);
    join_next(pool, block);
  }
  free_blocks(pool, block->small).insert(block);
}

void CachingAllocator::join_next(Pool& pool, Block* block) {
  Block* const gone = block->next;
  block->bytes += gone->bytes;
  block->next = gone->next;
  if (block->next) block->next->previous = block;
  pool.blocks.erase(gone->data);
}

bool CachingAllocator::is_over(int device, Waiting& waiting, bool wait) {
  if (!waiting.event) {
    if (memory_->is_capturing(device, waiting.stream)) return false;
    waiting.event = memory_->record(device, waiting.stream);
  }
  if (wait) memory_->wait(device, waiting.event);
  return wait || memory_->is_done(device, waiting.event);
}

void CachingAllocator::collect(Pool& pool, int device, bool wait) {
  for (std::size_t i = 0; i < pool.waiting.size();) {
    if (!is_over(device, pool.waiting[i], wait)) {
      ++i;
      continue;
    }
    const Waiting over = std::exchange(pool.waiting[i], pool.waiting.back());
    pool.waiting.pop_back();
    memory_->destroy(over.event);
    if (--over.block->pending_events == 0) make_free(pool, over.block);
  }
}

void CachingAllocator::return_segments(Pool& pool, int device) {
  for (auto* free : {&pool.small, &pool.large}) {
    for (auto at = free->begin(); at != free->end();) {
      Block* const block = *at;
      if (block->previous || block->next || pool.held_streams.contains(block->stream)) {
        ++at;
        continue;
      }
      at = free->erase(at);
      pool.held -= block->bytes;
      memory_->release(device, block->data);
      pool.blocks.erase(block->data);
    }
  }
  pool.stats.cached = pool.held - pool.stats.in_use;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    collect(pools_[i], static_cast<int>(i), /*wait=*/true);
    return_segments(pools_[i], static_cast<int>(i));
  }
}

void CachingAllocator::record_stream(const void* data, Device device, Handle stream) {
  const std::lock_guard lock(mutex_);
  Pool& p = pool(device, "record_stream");
  const auto* const at = static_cast<const char*>(data);
  auto found = p.blocks.upper_bound(at);
  Block* const block = found == p.blocks.begin() ? nullptr : std::prev(found)->second.get();
  LOCKSTEP_CHECK(block && at < block->data + block->bytes && block->in_use,
                 "[record_stream] {} is no memory in use on {}", data, to_string(device));
  if (stream == block->stream) return;
  auto& streams = block->other_streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void CachingAllocator::hold_stream(Device device, Handle stream) {
  const std::lock_guard lock(mutex_);
  ++pool(device, "hold_stream").held_streams[stream];
}

void CachingAllocator::release_stream(Device device, Handle stream) {
  const std::lock_guard lock(mutex_);
  auto& held = pool(device, "release_stream").held_streams;
  const auto found = held.find(stream);
  LOCKSTEP_ASSERT(found != held.end(), "the stream is not held");
  if (--found->second == 0) held.erase(found);
}

AllocatorStats CachingAllocator::stats(Device device) const {
  const std::lock_guard lock(mutex_);
  return const_cast<CachingAllocator*>(this)->pool(device, "stats").stats;
}

void CachingAllocator::reset_peak(Device device) {
  const std::lock_guard lock(mutex_);
  AllocatorStats& stats = pool(device, "reset_peak").stats;
  stats.peak = stats.in_use;
}

void CachingAllocator::throw_out_of_memory(const Pool& pool, int device, std::size_t bytes) const {
  const DeviceMemory::Info info = memory_->info(device);
  throw Error(fmt::format(
      "cuda:{} is out of memory: {} were asked for; this process holds {}, {} of them in use; {} of the device's {} "
      "are "
      "free; use a smaller batch, or end other programs on the device",
      device, in_mib(bytes), in_mib(pool.held), in_mib(pool.stats.in_use), in_mib(info.free), in_mib(info.total)));
}

}  // namespace lockstep::cuda
