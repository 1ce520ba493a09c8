#include "lockstep/core/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/fork_handlers.h"
#include "lockstep/core/log.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/core/storage.h"

namespace lockstep {
namespace {

constexpr int kMaxThreads = 1024;

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  const unsigned count = std::thread::hardware_concurrency();
  return count ? static_cast<int>(count) : 1;
}

int initial_threads() {
  for (const char* variable : {"LOCKSTEP_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const auto text = environment_variable(variable);
    if (!text) continue;
    const auto value = parse_number<int>(*text);
    if (value && *value >= 1 && *value <= kMaxThreads) return *value;
    logging::warn("{}='{}' is ignored: expected a number from 1 to {}", variable, *text, kMaxThreads);
  }
  return available_cores();
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// One parallel_for. Threads claim blocks by counting `next` up; it lives on the caller's stack, so the caller leaves
// only when no worker is inside.
struct Loop {
  std::int64_t count;
  std::int64_t block;
  std::int64_t blocks;
  void* context;
  detail::BlockFunction run;
  const char* name;  // of what the caller computes, or null
  bool library = LibraryAccess::active();
  std::atomic<std::int64_t> next{0};
  std::mutex error_mutex{};
  std::int64_t error_block = -1;
  std::exception_ptr error{};

  void work() {
    for (;;) {
      const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= blocks) return;
      try {
        run(context, i * block, i + 1 == blocks ? count : (i + 1) * block);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (error_block < 0 || i < error_block) {
          error_block = i;
          error = std::current_exception();
        }
      }
    }
  }
};

thread_local bool inside_loop = false;

class InsideLoop {
 public:
  InsideLoop() { inside_loop = true; }
  ~InsideLoop() { inside_loop = false; }
  InsideLoop(const InsideLoop&) = delete;
  InsideLoop& operator=(const InsideLoop&) = delete;
};

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {}

  int threads() const { return threads_.load(std::memory_order_relaxed); }

  void resize(int n) {
    std::lock_guard lock(submit_mutex_);
    stop_workers();
    threads_.store(n, std::memory_order_relaxed);
  }

  /// False if another thread's loop has the workers.
  bool run(Loop& loop) {
    std::unique_lock lock(submit_mutex_, std::try_to_lock);
    if (!lock) return false;
    if (workers_.empty()) start_workers();
    loop_.store(&loop, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
    loop.work();
    int spins = 0;
    for (int busy = busy_.load(std::memory_order_acquire); busy > 0; busy = busy_.load(std::memory_order_acquire)) {
      if (++spins < spin_limit_) {
        relax();
      } else {
        busy_.wait(busy, std::memory_order_acquire);
      }
    }
    return true;
  }

 private:
  void start_workers() {
    const int n = threads();
    // Waiting by spinning costs the others time when threads outnumber cores.
    spin_limit_ = n <= available_cores() ? 2000 : 1;
    stopping_.store(false);
    const std::uint32_t generation = generation_.load();
    try {
      for (int i = 1; i < n; ++i)
        workers_.push_back(start_thread("parallel_for", [this, generation] { serve(generation); }));
    } catch (...) {
      stop_workers();  // the next loop tries again
      throw;
    }
  }

  void stop_workers() {
    if (workers_.empty()) return;
    stopping_.store(true);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  static void serve(Loop& loop) {
    const profile::Scope scope("worker", loop.name ? loop.name : "parallel_for");
    const LibraryAccess access(loop.library);
    loop.work();
  }

  void serve(std::uint32_t seen) {
    inside_loop = true;
    for (;;) {
      for (int spins = 0; generation_.load(std::memory_order_seq_cst) == seen; ++spins) {
        if (spins < spin_limit_) {
          relax();
        } else {
          sleepers_.fetch_add(1, std::memory_order_seq_cst);
          generation_.wait(seen, std::memory_order_seq_cst);
          sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        }
      }
      ++seen;
      if (stopping_.load()) return;
      serve(*loop_.load(std::memory_order_relaxed));
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  std::mutex submit_mutex_;
  std::vector<std::thread> workers_;
  std::atomic<int> threads_;
  int spin_limit_ = 1;
  std::atomic<bool> stopping_{false};
  std::atomic<Loop*> loop_{nullptr};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> busy_{0};
};

// Never destroyed: static destructors elsewhere may still run loops.
std::atomic<Pool*> the_pool{nullptr};

// A forked child has the pool's memory but none of its threads, and makes one of its own, of the same size.
void renew_pool() {
  if (const Pool* parents = the_pool.load()) the_pool.store(new Pool(parents->threads()));
}

const ForkHandlers fork_handlers(nullptr, nullptr, renew_pool);

Pool& make_pool() {
  auto made = std::make_unique<Pool>(initial_threads());
  Pool* expected = nullptr;
  return the_pool.compare_exchange_strong(expected, made.get()) ? *made.release() : *expected;
}

Pool& pool() {
  Pool* made = the_pool.load(std::memory_order_acquire);
  return made ? *made : make_pool();
}

}  // namespace

int num_threads() {
  return pool().threads();
}

void set_num_threads(int n) {
  LOCKSTEP_CHECK(n >= 1 && n <= kMaxThreads, "the number of threads must be from 1 to {}; got {}", kMaxThreads, n);
  pool().resize(n);
}

namespace detail {

void parallel_for(std::int64_t count, std::int64_t block, void* context, BlockFunction run) {
  LOCKSTEP_ASSERT(block > 0, "block is {}", block);
  Loop loop{.count = count,
            .block = block,
            .blocks = (count + block - 1) / block,
            .context = context,
            .run = run,
            .name = profile::enabled() ? profile::current_name() : nullptr};
  const bool serial = inside_loop || pool().threads() == 1;
  if (serial) {
    loop.work();
  } else {
    const InsideLoop inside;
    if (!pool().run(loop)) loop.work();
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace detail

}  // namespace lockstep
