#include "lockstep/core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
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

// One parallel_for. It lives on the caller's stack, so the caller leaves only when no worker is inside
// (Note [Late workers]).
//
// The blocks lie in as many parts as there are threads, and each thread begins with its own: from loop to loop it meets
// the same piece of arrays of one length, which the caches of its core may still hold. Then it helps with the others'.
struct Loop {
  std::int64_t count;
  std::int64_t block;
  std::int64_t blocks;
  void* context;
  detail::BlockFunction run;
  const char* name;  // of what the caller computes, or null
  int parts = 1;
  bool library = LibraryAccess::active();
  std::mutex error_mutex{};
  std::int64_t error_block = -1;
  std::exception_ptr error{};

  static constexpr int kMaxParts = 16;
  struct alignas(64) Part {  // a cache line, so that threads count by themselves
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  Part part[kMaxParts]{};

  void divide(int threads) {
    parts = static_cast<int>(std::min<std::int64_t>({threads, blocks, kMaxParts}));
    const std::int64_t length = blocks / parts, longer = blocks % parts;  // the first `longer` have one more
    for (int i = 0; i < parts; ++i) {
      part[i].next.store(i * length + std::min<std::int64_t>(i, longer), std::memory_order_relaxed);
      part[i].end = (i + 1) * length + std::min<std::int64_t>(i + 1, longer);
    }
  }

  void work(int thread) {
    for (int i = 0; i < parts; ++i) work_on(part[(thread + i) % parts]);
  }

 private:
  void work_on(Part& mine) {
    for (;;) {
      const std::int64_t i = mine.next.fetch_add(1, std::memory_order_relaxed);
      if (i >= mine.end) return;
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

LOCKSTEP_INITIAL_EXEC thread_local constinit bool inside_loop = false;
LOCKSTEP_INITIAL_EXEC thread_local constinit int number_in_loop = -1;

class InsideLoop {
 public:
  InsideLoop() { inside_loop = true; }
  ~InsideLoop() {
    inside_loop = false;
    number_in_loop = -1;
  }
  InsideLoop(const InsideLoop&) = delete;
  InsideLoop& operator=(const InsideLoop&) = delete;
};

/// Note [Late workers]
/// A worker that is asleep, or whose core another process has at the time, comes to a loop too late, on a busy machine
/// by milliseconds, where a loop takes microseconds. So nobody waits for workers as such: the caller works until no
/// block is left, closes the gate, and waits for those who are inside. One word holds all of it, so that a worker
/// cannot enter between the closing and the look at who is inside: how many are, whether the gate is closed, and the
/// loop's number.
class Gate {
 public:
  using State = std::uint32_t;

  static bool is_open(State state) { return (state & kClosed) == 0; }
  static State number(State state) { return state / kNumber; }

  State state() const { return state_.load(std::memory_order_seq_cst); }
  /// Opens it for the next loop; it is closed and nobody is inside.
  void open() { state_.store((number(state()) + 1) * kNumber, std::memory_order_seq_cst); }
  /// Enters if the state is still this one.
  bool enter(State state) { return state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel); }
  void leave() {
    if (state_.fetch_sub(1, std::memory_order_acq_rel) % kNumber != kClosed + 1) return;
    left_.fetch_add(1, std::memory_order_seq_cst);  // the last, after the closing
    left_.notify_one();
  }
  /// Closes it, and returns when nobody is inside. `spins`: looks before sleeping.
  void close(int spins) {
    state_.fetch_or(kClosed, std::memory_order_acq_rel);
    for (int i = 0;; ++i) {
      const std::uint32_t left = left_.load(std::memory_order_seq_cst);
      if (state_.load(std::memory_order_seq_cst) % kClosed == 0) return;
      if (i < spins) {
        relax();
      } else {
        left_.wait(left, std::memory_order_seq_cst);
      }
    }
  }
  void wait_for_change(State state) { state_.wait(state, std::memory_order_seq_cst); }
  void wake() { state_.notify_all(); }
  /// Another state that is closed, for those who wait.
  void change() { state_.fetch_add(kNumber, std::memory_order_seq_cst); }

 private:
  static constexpr State kClosed = 2048;  // above the number of those inside
  static_assert(kMaxThreads < kClosed);
  static constexpr State kNumber = 2 * kClosed;  // the loop's, which wraps round

  std::atomic<State> state_{kClosed};
  std::atomic<std::uint32_t> left_{0};
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
    loop.divide(threads());
    loop_.store(&loop, std::memory_order_relaxed);
    gate_.open();
    if (sleepers_.load(std::memory_order_seq_cst) > 0) gate_.wake();
    number_in_loop = 0;
    loop.work(0);
    gate_.close(spin_limit_);
    return true;
  }

 private:
  void start_workers() {
    const int n = threads();
    // Waiting by spinning costs the others time when threads outnumber cores.
    spin_limit_ = n <= available_cores() ? 2000 : 1;
    stopping_.store(false);
    try {
      for (int i = 1; i < n; ++i) workers_.push_back(start_thread("parallel_for", [this, i] { serve(i); }));
    } catch (...) {
      stop_workers();  // the next loop tries again
      throw;
    }
  }

  void stop_workers() {
    if (workers_.empty()) return;
    stopping_.store(true);
    gate_.change();
    gate_.wake();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  static void serve(Loop& loop, int thread) {
    const profile::Scope scope("worker", loop.name ? loop.name : "parallel_for");
    const LibraryAccess access(loop.library);
    loop.work(thread);
  }

  void serve(int thread) {
    inside_loop = true;
    number_in_loop = thread;
    std::optional<Gate::State> served;  // the number of the last loop
    int spins = 0;
    while (true) {
      const Gate::State state = gate_.state();
      if (Gate::is_open(state) && served != Gate::number(state)) {
        if (!gate_.enter(state)) continue;
        served = Gate::number(state);
        serve(*loop_.load(std::memory_order_relaxed), thread);
        gate_.leave();
        spins = 0;
      } else if (stopping_.load()) {
        return;
      } else if (++spins < spin_limit_) {
        relax();
      } else {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        gate_.wait_for_change(state);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        spins = 0;
      }
    }
  }

  std::mutex submit_mutex_;
  std::vector<std::thread> workers_;
  std::atomic<int> threads_;
  int spin_limit_ = 1;
  std::atomic<bool> stopping_{false};
  std::atomic<Loop*> loop_{nullptr};
  Gate gate_;
  std::atomic<int> sleepers_{0};
};

// Never destroyed: static destructors elsewhere may still run loops.
std::atomic<Pool*> the_pool{nullptr};

// A forked child has the pool's memory but none of its threads, and makes one of its own, of the same size, when it
// first wants it: the handler may not ask for memory.
std::atomic<int> parents_threads{0};

void forget_pool() {
  if (const Pool* parents = the_pool.exchange(nullptr)) parents_threads.store(parents->threads());
}

const ForkHandlers fork_handlers(nullptr, nullptr, forget_pool);

Pool& make_pool() {
  const int inherited = parents_threads.load();
  auto made = std::make_unique<Pool>(inherited > 0 ? inherited : initial_threads());
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

int loop_thread() {
  return number_in_loop;
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
  const auto run_here = [&] {
    loop.divide(1);
    loop.work(0);
  };
  if (serial) {
    run_here();
  } else {
    const InsideLoop inside;
    if (!pool().run(loop)) run_here();
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace detail

}  // namespace lockstep
