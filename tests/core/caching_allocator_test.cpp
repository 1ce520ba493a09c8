// The rules by which device memory is kept and handed out again, on a device that only pretends.

#include "lockstep/core/cuda/caching_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "tests/support/tensor_testing.h"

namespace lockstep::cuda {
namespace {

using testing::error_of;

constexpr std::size_t kMiB = std::size_t{1} << 20;
const Device kDevice(kCUDA, 0);

/// Addresses without memory behind them, and events that are done when the test says so.
struct FakeMemory final : DeviceMemory {
  void* allocate(int, std::size_t bytes) override {
    if (used + bytes > total) return nullptr;
    used += bytes;
    ++allocations;
    char* const data = next;
    next += bytes + kMiB;
    segments[data] = bytes;
    return data;
  }
  void release(int, void* data) noexcept override {
    used -= segments.at(data);
    segments.erase(data);
  }
  Info info(int) override { return {total - used, total}; }
  Handle current_stream(int) override { return stream; }
  bool is_capturing(int, Handle on) override { return on && on == captured; }
  Handle record(int, Handle on) override {
    if (faulty) throw Error("an illegal memory access was encountered");
    recorded.push_back(on);
    char* const event = reinterpret_cast<char*>(0x1000) + recorded.size();
    events.insert(event);
    if (on && on == captured) captured_events.insert(event);
    return event;
  }
  bool is_done(int, Handle event) override {
    if (captured_events.contains(event)) throw Error("operation not permitted on an event last recorded in a capture");
    return done.contains(event);
  }
  void wait(int, Handle event) override {
    done.insert(event);
    ++waits;
  }
  void destroy(Handle event) noexcept override { events.erase(event); }

  void finish_all() { done.insert(events.begin(), events.end()); }

  std::size_t total = 100 * kMiB;
  std::size_t used = 0;
  int allocations = 0;
  int waits = 0;
  Handle stream = nullptr;
  Handle captured = nullptr;
  std::map<void*, std::size_t> segments;
  std::vector<Handle> recorded;
  std::set<Handle> events;
  std::set<Handle> captured_events;
  std::set<Handle> done;
  bool faulty = false;
  char* next = reinterpret_cast<char*>(std::uintptr_t{1} << 40);
};

struct CachingAllocatorTest : ::testing::Test {
  CachingAllocatorTest() {
    auto owned = std::make_unique<FakeMemory>();
    memory = owned.get();
    allocator = std::make_unique<CachingAllocator>(std::move(owned), 1);
  }
  void* get(std::size_t bytes) { return allocator->allocate(bytes, kDevice); }
  void put(void* data, std::size_t bytes = 0) { allocator->deallocate(data, bytes, kDevice); }

  Handle stream(int number) { return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(number)); }

  FakeMemory* memory;
  std::unique_ptr<CachingAllocator> allocator;
};

TEST_F(CachingAllocatorTest, AFreedBlockIsHandedOutAgain) {
  void* const a = get(1000);
  put(a);
  EXPECT_EQ(get(900), a);
  EXPECT_EQ(memory->allocations, 1);
  EXPECT_EQ(allocator->allocate(0, kDevice), nullptr);
}

TEST_F(CachingAllocatorTest, SmallBlocksShareASegment) {
  char* const a = static_cast<char*>(get(1));
  char* const b = static_cast<char*>(get(513));
  char* const c = static_cast<char*>(get(512));
  EXPECT_EQ(b - a, 512);
  EXPECT_EQ(c - b, 1024);
  EXPECT_EQ(memory->allocations, 1);
  EXPECT_EQ(memory->used, 2 * kMiB);
  EXPECT_EQ(allocator->stats(kDevice).in_use, 512u + 1024 + 512);
  EXPECT_EQ(allocator->stats(kDevice).cached, 2 * kMiB - 2048);
}

TEST_F(CachingAllocatorTest, SegmentsGrowWithTheRequest) {
  get(2 * kMiB);
  EXPECT_EQ(memory->used, 20 * kMiB);
  get(9 * kMiB);  // the rest of the same segment
  EXPECT_EQ(memory->used, 20 * kMiB);
  get(11 * kMiB + 1);
  EXPECT_EQ(memory->used, 32 * kMiB);
}

TEST_F(CachingAllocatorTest, FreeNeighboursAreJoined) {
  void* const a = get(600 << 10);
  void* const b = get(600 << 10);
  void* const c = get(600 << 10);
  put(a);
  put(c);
  put(b);
  EXPECT_EQ(get(kMiB), a);
  EXPECT_EQ(memory->allocations, 1);
  put(a);
  allocator->empty_cache();
  EXPECT_EQ(memory->used, 0u);
  EXPECT_TRUE(memory->segments.empty());
}

TEST_F(CachingAllocatorTest, TheSmallestBlockThatFitsIsTaken) {
  void* const large = get(8 * kMiB);
  void* const between = get(2 * kMiB);
  void* const small = get(4 * kMiB);
  void* const rest = get(6 * kMiB);  // of the segment
  put(large);
  put(small);
  EXPECT_EQ(get(4 * kMiB), small);
  put(between);
  put(rest);
}

TEST_F(CachingAllocatorTest, BlocksStayWithTheirStream) {
  memory->stream = stream(1);
  void* const a = get(1000);
  put(a);
  memory->stream = stream(2);
  EXPECT_NE(get(1000), a);
  memory->stream = stream(1);
  EXPECT_EQ(get(1000), a);
}

TEST_F(CachingAllocatorTest, ABlockThatAnotherStreamUsedWaitsForIt) {
  memory->stream = stream(1);
  void* const a = get(3 * kMiB);
  allocator->record_stream(a, kDevice, stream(2));
  allocator->record_stream(static_cast<char*>(a) + 100, kDevice, stream(2));  // once is enough
  allocator->record_stream(a, kDevice, stream(1));                            // its own
  put(a);
  ASSERT_EQ(memory->recorded, std::vector<Handle>{stream(2)});
  EXPECT_EQ(allocator->stats(kDevice).in_use, 0u);
  void* const b = get(3 * kMiB);
  EXPECT_NE(b, a);
  memory->finish_all();
  EXPECT_EQ(get(3 * kMiB), a);
  EXPECT_TRUE(memory->events.empty());
}

TEST_F(CachingAllocatorTest, AFullDeviceGivesBackWhatIsCachedAndTriesAgain) {
  void* const a = get(60 * kMiB);
  put(a);
  get(90 * kMiB);
  EXPECT_EQ(memory->used, 90 * kMiB);
  EXPECT_EQ(allocator->stats(kDevice).cached, 0u);
}

TEST_F(CachingAllocatorTest, AFullDeviceWaitsForOtherStreamsFirst) {
  memory->stream = stream(1);
  void* const a = get(60 * kMiB);
  allocator->record_stream(a, kDevice, stream(2));
  put(a);
  get(90 * kMiB);
  EXPECT_EQ(memory->waits, 1);
}

TEST_F(CachingAllocatorTest, HeldStreamsKeepTheirMemory) {
  memory->stream = stream(1);
  put(get(60 * kMiB));
  allocator->hold_stream(kDevice, stream(1));
  allocator->empty_cache();
  EXPECT_EQ(memory->used, 60 * kMiB);
  EXPECT_NE(error_of([&] { get(90 * kMiB); }).find("out of memory"), std::string::npos);
  allocator->release_stream(kDevice, stream(1));
  allocator->empty_cache();
  EXPECT_EQ(memory->used, 0u);
}

TEST_F(CachingAllocatorTest, UnderACaptureNoEventIsAskedAbout) {
  memory->stream = stream(1);
  void* const a = get(4 * kMiB);
  allocator->record_stream(a, kDevice, stream(2));
  put(a);
  memory->finish_all();
  memory->captured = stream(1);
  EXPECT_NE(get(4 * kMiB), a);
  EXPECT_FALSE(memory->events.empty());
  memory->captured = nullptr;
  EXPECT_EQ(get(4 * kMiB), a);
}

TEST_F(CachingAllocatorTest, OutOfMemorySaysWhatWasAskedHeldAndFree) {
  get(30 * kMiB);
  EXPECT_EQ(
      error_of([&] { get(80 * kMiB); }),
      "cuda:0 is out of memory: 80.00 MiB were asked for; this process holds 30.00 MiB, 30.00 MiB of them in use; "
      "70.00 MiB of the device's 100.00 MiB are free; use a smaller batch, or end other programs on the device");
  EXPECT_NE(get(70 * kMiB), nullptr);  // and goes on
}

TEST_F(CachingAllocatorTest, CountsThePeak) {
  void* const a = get(4 * kMiB);
  void* const b = get(4 * kMiB);
  put(a);
  put(b);
  EXPECT_EQ(allocator->stats(kDevice).peak, 8 * kMiB);
  allocator->reset_peak(kDevice);
  EXPECT_EQ(allocator->stats(kDevice).peak, 0u);
  EXPECT_EQ(allocator->stats(kDevice).cached, 20 * kMiB);
}

TEST_F(CachingAllocatorTest, WrongDevicesAndMemoryAreErrors) {
  EXPECT_EQ(error_of([&] { allocator->allocate(1, Device(kCUDA, 3)); }),
            "[allocate] there is no device cuda:3; found 1 CUDA device(s)");
  int elsewhere = 0;
  EXPECT_NE(error_of([&] { allocator->record_stream(&elsewhere, kDevice, stream(1)); }).find("is no memory in use"),
            std::string::npos);
}

TEST_F(CachingAllocatorTest, ATensorFreedDuringACaptureComesBackAfterIt) {
  void* const block = get(1000);
  allocator->record_stream(block, kDevice, stream(5));
  memory->captured = stream(5);
  put(block);
  void* const other = get(2000);  // on another stream, which asks what is over
  EXPECT_NE(other, block);
  EXPECT_TRUE(memory->recorded.empty());
  memory->captured = nullptr;
  EXPECT_NE(get(1000), block);  // the event is recorded now, and not done
  EXPECT_EQ(memory->recorded, std::vector<Handle>{stream(5)});
  memory->finish_all();
  EXPECT_EQ(get(1000), block);
}

TEST_F(CachingAllocatorTest, AfterAFaultOfTheDeviceABlockOfSeveralStreamsIsGivenUp) {
  void* const block = get(1000);
  allocator->record_stream(block, kDevice, stream(5));
  memory->faulty = true;
  put(block);  // ends the process if it throws
  EXPECT_NE(get(1000), block);
  EXPECT_EQ(allocator->stats(kDevice).in_use, 1024u);
}

}  // namespace
}  // namespace lockstep::cuda
