#pragma once

// Where a fiber goes on: swap() leaves one stack and continues on another. On x86-64 it exchanges the registers that a
// function must preserve, because swapcontext() asks the kernel for the signal mask each time and, under
// AddressSanitizer, clears the shadow of a whole stack: tens of microseconds for each barrier of each thread. For .cpp
// files only.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
extern "C" void lockstep_swap_stacks(void** from, void* to);
#else
#include <ucontext.h>
#endif

namespace lockstep::cuda::emulated {

#if defined(__x86_64__)

struct Context {
  void* stack_pointer = nullptr;
};

/// The first swap() to it calls entry(), which must not return, on the given stack.
inline void prepare(Context& context, char* stack, std::size_t bytes, void (*entry)()) {
  const std::uintptr_t top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15};
  auto* slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;  // entry()'s return address: a stack trace ends here
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;  // the registers that lockstep_swap_stacks() takes from the stack
  context.stack_pointer = slot;
}

inline void swap(Context& from, Context& to) {
  lockstep_swap_stacks(&from.stack_pointer, to.stack_pointer);
}

#else

struct Context {
  ucontext_t value{};
};

inline void prepare(Context& context, char* stack, std::size_t bytes, void (*entry)()) {
  getcontext(&context.value);
  context.value.uc_stack.ss_sp = stack;
  context.value.uc_stack.ss_size = bytes;
  context.value.uc_link = nullptr;
  makecontext(&context.value, entry, 0);
}

inline void swap(Context& from, Context& to) {
  swapcontext(&from.value, &to.value);
}

#endif

}  // namespace lockstep::cuda::emulated
