#pragma once

#include <cstddef>
#include <new>

#include "lockstep/core/thread_pool.h"

namespace lockstep {

/// A per-thread list of freed blocks of one size, for objects that every operation makes. A block may be freed on
/// another thread than it was made on; it then joins that thread's list. Lists are bounded.
template <std::size_t Size>
class FreeList {
 public:
  static void* allocate(std::size_t bytes) {
    State& state = list();
    if (bytes == Size && state.head) {
      Block* block = state.head;
      state.head = block->next;
      --state.count;
      return block;
    }
    return ::operator new(bytes);
  }

  static void release(void* pointer) noexcept {
    State& state = list();
    if (!pointer) return;
    if (kCache && !state.closed && state.count < kLimit) {
      state.head = new (pointer) Block{state.head};
      ++state.count;
    } else {
      ::operator delete(pointer);
    }
  }

 private:
  static constexpr std::size_t kLimit = 4096;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool kCache = false;  // reuse would hide errors from the sanitizer
#else
  static constexpr bool kCache = true;
#endif
  struct Block {
    Block* next;
  };
  static_assert(Size >= sizeof(Block));

  // Trivially destructible, so that it can still be used while other thread-local objects are destroyed.
  struct State {
    Block* head = nullptr;
    std::size_t count = 0;
    bool closed = false;
    bool armed = false;
  };
  struct Drain {
    ~Drain() {
      State& state = state_;
      state.closed = true;
      while (state.head) {
        Block* block = state.head;
        state.head = block->next;
        ::operator delete(block);
      }
      state.count = 0;
    }
  };

  static State& list() {
    if (!state_.armed) {
      state_.armed = true;
      static thread_local Drain drain;
      (void)drain;
    }
    return state_;
  }

  LOCKSTEP_INITIAL_EXEC static inline thread_local constinit State state_{};
};

}  // namespace lockstep
