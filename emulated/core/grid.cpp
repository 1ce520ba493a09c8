// Kernels of the emulated device: the threads of a block are fibers of one thread of the host.

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/emulated/core/context.h"
#include "lockstep/emulated/core/execution.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// Pushes what a function must preserve, keeps the stack pointer in *from, and takes the same from the stack `to`.
asm(R"(
    .text
    .local lockstep_swap_stacks
    .type lockstep_swap_stacks, @function
lockstep_swap_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size lockstep_swap_stacks, . - lockstep_swap_stacks
)");
#endif

namespace lockstep::cuda::emulated {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;

enum class Waits { no, for_warp, for_block };

struct Fiber {
#if defined(__SANITIZE_THREAD__)
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  ~Fiber() {
    __tsan_destroy_fiber(known);
  }
  void* known = __tsan_create_fiber(0);  // to ThreadSanitizer
#endif
  Context context;
  std::unique_ptr<char[]> stack;
  void* fake_stack = nullptr;  // AddressSanitizer's
  ThreadState thread;
  Waits waits = Waits::no;
  bool idle = true;
};

struct Warp {
  // Two sets of words in turn: a lane that is quick writes its next word while others still read the last ones.
  std::array<std::array<unsigned long long, kWarp>, 2> words{};
  std::array<unsigned char, kWarp> turn{};
  std::array<bool, kWarp> ended{};
};

/// Runs blocks one after the other. Fibers are kept from one to the next.
class BlockRunner {
 public:
  void run(Index3 grid, Index3 block_index, Index3 block, const std::function<void()>& body) {
    body_ = &body;
    grid_ = grid;
    block_index_ = block_index;
    block_ = block;
    threads_ = static_cast<int>(block.x * block.y * block.z);
    next_ = 0;
    warps_.assign(static_cast<std::size_t>((threads_ + kWarp - 1) / kWarp), {});
    while (next_ < threads_ || !waiting_.empty()) {
      if (next_ < threads_)
        resume(*idle_fiber());
      else
        release();
      if (error_) {
        waiting_.clear();
        fibers_.clear();  // those that wait are lost with their stacks
        std::rethrow_exception(std::exchange(error_, nullptr));
      }
    }
  }

  Fiber* present() { return present_; }

  void wait(Waits what) {
    present_->waits = what;
    waiting_.push_back(present_);
    leave();
  }

  Warp& warp() { return warps_[static_cast<std::size_t>(present_->thread.linear() / kWarp)]; }

 private:
  Fiber* idle_fiber() {
    for (const auto& fiber : fibers_)
      if (fiber->idle) return fiber.get();
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber* fiber = fibers_.back().get();
    fiber->stack = std::make_unique<char[]>(kStackBytes);
    prepare(fiber->context, fiber->stack.get(), kStackBytes, &BlockRunner::enter);
    return fiber;
  }

  static void enter();

  // Takes threads that have not begun, one after the other, until one of them waits; and again in the next block.
  [[noreturn]] void work(Fiber& fiber) {
    arrived(nullptr);
    while (true) {
      fiber.idle = false;
      while (next_ < threads_ && !error_) {
        const int index = next_++;
        fiber.thread.grid_dim = grid_;
        fiber.thread.block_dim = block_;
        fiber.thread.block = block_index_;
        const auto at = static_cast<unsigned>(index);
        fiber.thread.thread = {at % block_.x, at / block_.x % block_.y, at / (block_.x * block_.y)};
        try {
          (*body_)();
        } catch (...) {
          error_ = std::current_exception();
        }
        warps_[static_cast<std::size_t>(index / kWarp)].ended[static_cast<std::size_t>(index % kWarp)] = true;
      }
      fiber.idle = true;
      leave();
    }
  }

  void resume(Fiber& fiber) {
    present_ = &fiber;
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStackBytes);
    swap(scheduler_, fiber.context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
#if defined(__SANITIZE_THREAD__)
    host_fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber.known, 0);
#endif
    swap(scheduler_, fiber.context);
#endif
    present_ = nullptr;
  }

  void leave() {
    Fiber& fiber = *present_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fiber.fake_stack, host_stack_, host_bytes_);
    swap(fiber.context, scheduler_);
    arrived(fiber.fake_stack);
#else
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(host_fiber_, 0);
#endif
    swap(fiber.context, scheduler_);
#endif
  }

  void arrived([[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &host_stack_, &host_bytes_);
#endif
  }

  // Everybody waits or has ended: lets a warp go on if all that is left of it has come, else the block.
  void release() {
    std::vector<int> at_warp(warps_.size()), live(warps_.size());
    int at_block = 0;
    for (Fiber* fiber : waiting_) {
      const auto warp = static_cast<std::size_t>(fiber->thread.linear() / kWarp);
      ++live[warp];
      if (fiber->waits == Waits::for_warp)
        ++at_warp[warp];
      else
        ++at_block;
    }
    std::vector<Fiber*> go, stay;
    for (Fiber* fiber : waiting_) {
      const auto warp = static_cast<std::size_t>(fiber->thread.linear() / kWarp);
      const bool ready =
          fiber->waits == Waits::for_warp ? at_warp[warp] == live[warp] : at_block == static_cast<int>(waiting_.size());
      (ready ? go : stay).push_back(fiber);
    }
    if (go.empty()) {
      error_ =
          std::make_exception_ptr(Error(fmt::format("kernel: block ({}, {}, {}) cannot go on: {} thread(s) wait for "
                                                    "the block, {} for their warp, and others of the "
                                                    "same warp do not come; every thread must reach the same barriers",
                                                    block_index_.x, block_index_.y, block_index_.z, at_block,
                                                    waiting_.size() - static_cast<std::size_t>(at_block))));
      return;
    }
    waiting_ = std::move(stay);
    for (Fiber* fiber : go) {
      resume(*fiber);
      if (error_) return;
    }
  }

  const std::function<void()>* body_ = nullptr;
  Index3 grid_, block_index_, block_;
  int threads_ = 0, next_ = 0;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> waiting_;
  Fiber* present_ = nullptr;
  Context scheduler_;
  std::exception_ptr error_;
#if defined(__SANITIZE_ADDRESS__)
  const void* host_stack_ = nullptr;
  std::size_t host_bytes_ = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* host_fiber_ = nullptr;
#endif
};

thread_local BlockRunner runner;

void BlockRunner::enter() {
  runner.work(*runner.present());
}

}  // namespace

ThreadState& this_thread() {
  Fiber* fiber = runner.present();
  LOCKSTEP_ASSERT(fiber, "no kernel runs on this thread");
  return fiber->thread;
}

void block_barrier() {
  runner.wait(Waits::for_block);
}

const unsigned long long* warp_exchange(unsigned long long word) {
  Warp& warp = runner.warp();
  const auto lane = static_cast<std::size_t>(this_thread().lane());
  const unsigned char turn = warp.turn[lane];
  warp.turn[lane] = turn ^ 1u;
  warp.words[turn][lane] = word;
  // Only now: when a lane ends, others may not have read its last word.
  for (std::size_t other = 0; other < kWarp; ++other)
    if (warp.ended[other]) warp.words[turn][other] = 0;
  runner.wait(Waits::for_warp);
  return warp.words[turn].data();
}

void run_grid(Index3 grid, Index3 block, const std::function<void()>& body) {
  static thread_local bool backwards = false;  // blocks come in no order that a kernel may count on
  backwards = !backwards;
  const unsigned count = grid.x * grid.y * grid.z;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned at = backwards ? count - 1 - i : i;
    runner.run(grid, {at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y)}, block, body);
  }
}

}  // namespace lockstep::cuda::emulated
