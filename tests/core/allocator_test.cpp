#include "lockstep/core/allocator.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "lockstep/core/cuda/device.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kReuses = false;  // sanitizer builds give memory back at once
#else
constexpr bool kReuses = true;
#endif

Allocator& cpu() {
  return allocator(kCPU);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(Allocator, SanitizersSeeTheFirstByteBeyond) {
  for (const std::size_t bytes : {1u, 7u, 64u, 100u, 257u, 4100u, 70001u, 5000000u}) {
    auto* const data = static_cast<char*>(cpu().allocate(bytes, kCPU));
    EXPECT_EQ(__asan_address_is_poisoned(data + bytes - 1), 0) << bytes;
    EXPECT_NE(__asan_address_is_poisoned(data + bytes), 0) << bytes;
    EXPECT_NE(__asan_address_is_poisoned(data - 1), 0) << bytes;
    cpu().deallocate(data, bytes, kCPU);
  }
}
#endif

TEST(Allocator, BlocksAreAlignedAndWritableToTheLastByte) {
  for (const std::size_t bytes : {1u, 255u, 256u, 257u, 320u, 321u, 1000u, 4096u, 100000u, 1u << 20, (1u << 20) + 1,
                                  (2u << 20) - 1, 2u << 20, (2u << 20) + 1, (5u << 20) + 3, 33u << 20}) {
    void* data = cpu().allocate(bytes, {});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
    std::memset(data, 0xab, bytes);
    cpu().deallocate(data, bytes, {});
  }
  EXPECT_EQ(cpu().allocate(0, {}), nullptr);
  cpu().deallocate(nullptr, 0, {});
}

TEST(Allocator, AFreedBlockIsHandedOutAgain) {
  if (!kReuses) GTEST_SKIP() << "sanitizer builds do not reuse memory";
  const std::size_t bytes = 300000;
  void* first = cpu().allocate(bytes, {});
  cpu().deallocate(first, bytes, {});
  const std::uint64_t before = cpu().stats({}).system_allocations;
  void* second = cpu().allocate(bytes - 100, {});  // the same size class
  EXPECT_EQ(second, first);
  EXPECT_EQ(cpu().stats({}).system_allocations, before);
  cpu().deallocate(second, bytes - 100, {});
}

TEST(Allocator, StatisticsFollowUseAndPeak) {
  cpu().empty_cache();
  EXPECT_EQ(cpu().stats({}).cached, 0u);
  cpu().reset_peak({});
  const AllocatorStats before = cpu().stats({});
  EXPECT_EQ(before.peak, before.in_use);
  {
    const Tensor a = empty({1 << 18});  // 1 MiB
    const AllocatorStats during = cpu().stats({});
    EXPECT_GE(during.in_use, before.in_use + (1u << 20));
    EXPECT_LE(during.in_use, before.in_use + (1u << 20) * 5 / 4);
    EXPECT_EQ(during.peak, during.in_use);
    EXPECT_EQ(during.system_allocations, before.system_allocations + 1);
  }
  const AllocatorStats after = cpu().stats({});
  EXPECT_EQ(after.in_use, before.in_use);
  EXPECT_GE(after.peak, before.in_use + (1u << 20));
  EXPECT_EQ(after.cached > 0, kReuses);
  cpu().empty_cache();
  EXPECT_EQ(cpu().stats({}).cached, 0u);
}

// Note [Memory of loops]: what a block of a loop freed is its thread's, and statistics and empty_cache() know of it.
TEST(Allocator, WhatALoopFreesComesBackToItsThread) {
  if (!kReuses) GTEST_SKIP() << "sanitizer builds do not reuse memory";
  constexpr std::size_t kBytes = 30'000, kBlocks = 400;
  const int threads = num_threads();
  set_num_threads(3);
  cpu().empty_cache();
  const AllocatorStats before = cpu().stats({});
  std::array<int, kBlocks> thread{};
  std::array<void*, kBlocks> block{};
  std::atomic<int> arrived{0};
  parallel_for(kBlocks, 1, [&](std::int64_t begin, std::int64_t) {
    if (arrived.fetch_add(1) < 3)  // each thread has a block before the second is asked for
      while (arrived.load() < 3) std::this_thread::yield();
    const auto at = static_cast<std::size_t>(begin);
    thread[at] = loop_thread();
    block[at] = cpu().allocate(kBytes, {});
    cpu().deallocate(block[at], kBytes, {});
  });
  EXPECT_EQ(loop_thread(), -1);
  std::array<std::set<void*>, 3> of{};
  for (std::size_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(thread[i] >= 0 && thread[i] < 3);
    of[static_cast<std::size_t>(thread[i])].insert(block[i]);
  }
  for (const auto& blocks : of) EXPECT_EQ(blocks.size(), 1u);
  EXPECT_NE(*of[0].begin(), *of[1].begin());
  EXPECT_EQ(cpu().stats({}).in_use, before.in_use);
  EXPECT_GE(cpu().stats({}).cached, 3 * kBytes);
  cpu().reset_peak({});
  EXPECT_EQ(cpu().stats({}).peak, before.in_use);
  cpu().empty_cache();
  EXPECT_EQ(cpu().stats({}).cached, 0u);
  set_num_threads(threads);
}

// A thread keeps as much as a core's caches hold; the rest is for all.
TEST(Allocator, ALoopsThreadKeepsLittle) {
  if (!kReuses) GTEST_SKIP() << "sanitizer builds do not reuse memory";
  const int threads = num_threads();
  set_num_threads(2);
  cpu().empty_cache();
  const std::size_t in_use = cpu().stats({}).in_use;
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) blocks.push_back(cpu().allocate(200'000, {}));
    for (void* const block : blocks) cpu().deallocate(block, 200'000, {});
  });
  EXPECT_EQ(cpu().stats({}).in_use, in_use);
  const std::size_t cached = cpu().stats({}).cached;
  cpu().reset_peak({});  // gives back what loops keep
  EXPECT_LE(cached - cpu().stats({}).cached, std::size_t{2} << 20);
  cpu().empty_cache();
  set_num_threads(threads);
}

TEST(Allocator, AtMostAQuarterOfABlockIsWasted) {
  for (std::size_t bytes = 257; bytes < 5000000; bytes += bytes / 3 + 1) {
    const std::size_t before = cpu().stats({}).in_use;
    void* data = cpu().allocate(bytes, {});
    const std::size_t taken = cpu().stats({}).in_use - before;
    EXPECT_GE(taken, bytes);
    EXPECT_LE(taken, bytes * 5 / 4 + 64);
    cpu().deallocate(data, bytes, {});
  }
}

TEST(Allocator, LargeBlocksDoNotOverlapAndGoBackWhole) {
  if (!kReuses) GTEST_SKIP() << "sanitizer builds take memory from the C library";
  const std::size_t page = 4096, bytes = (std::size_t{6} << 20) + 1;
  cpu().empty_cache();
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 20; ++i) {  // more than there are beginnings
    blocks.push_back(static_cast<unsigned char*>(cpu().allocate(bytes, {})));
    std::memset(blocks.back(), i + 1, bytes);
  }
  for (int i = 0; i < 20; ++i) {
    const unsigned char* const block = blocks[static_cast<std::size_t>(i)];
    EXPECT_EQ(std::count(block, block + bytes, i + 1), static_cast<std::ptrdiff_t>(bytes));
  }
  for (unsigned char* const block : blocks) cpu().deallocate(block, bytes, {});
  cpu().empty_cache();
  if (const char* const huge = std::getenv("LOCKSTEP_HUGE_PAGES"); huge && std::string_view(huge) == "0") return;
  for (unsigned char* const block : blocks)
    for (std::size_t at = 0; at < bytes; at += page) {
      unsigned char present = 0;
      void* const address = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(block) + at) / page * page);
      EXPECT_TRUE(mincore(address, 1, &present) != 0 && errno == ENOMEM) << "still mapped: byte " << at;
    }
}

// A process has some 65,000 mappings, of which threads and libraries need some.
TEST(Allocator, ManyLargeBlocksLeaveMappingsToOthers) {
  if (!kReuses) GTEST_SKIP() << "sanitizer builds take memory from the C library";
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  cpu().empty_cache();
  std::vector<void*> blocks;
  for (int i = 0; i < 12'000; ++i) blocks.push_back(cpu().allocate(kBytes, {}));  // nothing is written
  std::ifstream maps("/proc/self/maps");
  const auto lines = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  EXPECT_LT(lines, 10'000);
  for (void* const block : blocks) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
    cpu().deallocate(block, kBytes, {});
  }
  cpu().empty_cache();
}

TEST(Allocator, ABlockThatJustFitsIsNotRefused) {
  if (!kReuses) GTEST_SKIP() << "sanitizer builds need the address space";
  constexpr std::size_t kBytes = std::size_t{100} << 20;
  const pid_t child = fork();
  if (child == 0) {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t size = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kBytes + (1 << 20);
    const rlimit limit{size, size};
    setrlimit(RLIMIT_AS, &limit);
    try {
      std::memset(cpu().allocate(kBytes, {}), 1, kBytes);
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Allocator, IsSafeToUseFromSeveralThreads) {
  const std::size_t before = cpu().stats({}).in_use;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 500; ++i) {
        const Tensor x = full({1 + (i * 37 + t) % 3000}, t);
        ASSERT_EQ(x.data<float>()[x.numel() - 1], static_cast<float>(t));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cpu().stats({}).in_use, before);
}

TEST(Allocator, WhatItKeepsIsBounded) {
  if (!kReuses) GTEST_SKIP() << "sanitizer builds do not reuse memory";
  cpu().empty_cache();
  const std::size_t start = cpu().stats({}).in_use;
  for (std::size_t bytes = 1u << 20; bytes <= 64u << 20; bytes += bytes / 4) {
    void* data = cpu().allocate(bytes, {});
    cpu().deallocate(data, bytes, {});
    const AllocatorStats now = cpu().stats({});
    EXPECT_LE(now.in_use + now.cached, 2 * (start + bytes * 5 / 4) + (64u << 20));
  }
  // Sizes that come back are served from what is kept.
  void* data = cpu().allocate(64u << 20, {});
  cpu().deallocate(data, 64u << 20, {});
  const std::uint64_t before = cpu().stats({}).system_allocations;
  data = cpu().allocate(64u << 20, {});
  EXPECT_EQ(cpu().stats({}).system_allocations, before);
  cpu().deallocate(data, 64u << 20, {});
  cpu().empty_cache();
}

TEST(Allocator, AForkedChildAllocatesWhateverItsParentsThreadsDid) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop) cpu().deallocate(cpu().allocate(1000, {}), 1000, {});
    });
  int failures = 0;
  for (int i = 0; i < 100 && failures == 0; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(5);  // a hang ends the child, and fails the test
      cpu().deallocate(cpu().allocate(1000, {}), 1000, {});
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    failures += status != 0;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST(Allocator, AnAbsurdRequestIsAnErrorAndLeavesTheStatisticsAlone) {
  const std::size_t before = cpu().stats({}).in_use;
  EXPECT_NE(error_of([] { cpu().allocate(std::size_t{1} << 60, {}); }).find("1152921504606846976 bytes"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              empty({std::int64_t{1} << 40, std::int64_t{1} << 40});
            }).find("too many elements"),
            std::string::npos);
  if (!kReuses) return;  // a sanitizer ends the process instead
  cpu().reset_peak({});
  const std::size_t peak = cpu().stats({}).peak;
  EXPECT_NE(error_of([] { cpu().allocate(std::size_t{1} << 46, {}); }).find("out of memory"), std::string::npos);
  EXPECT_EQ(cpu().stats({}).peak, peak);
  EXPECT_EQ(cpu().stats({}).in_use, before);
}

TEST(Allocator, ADeviceThatIsNotThereIsNamed) {
  const int beyond = cuda::device_count();
  const std::string message = error_of([&] { empty({1}, {.device = {kCUDA, beyond}}); });
  EXPECT_NE(message.find("cuda"), std::string::npos) << message;
  EXPECT_NE(message.find(cuda::why_unavailable()), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep
