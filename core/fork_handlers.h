#pragma once

#include <pthread.h>

#include "lockstep/core/check.h"

namespace lockstep {

/// Functions that run around fork() from the construction on: `prepare` before it, then `parent` or `child`, as
/// pthread_atfork() has it; any may be null. The child has none of the threads that may hold a lock or be in the middle
/// of a change. Declare one at namespace scope, so that they are registered before main(): a fork() that began before
/// they were would not run them.
class ForkHandlers {
 public:
  using Function = void (*)();
  ForkHandlers(Function prepare, Function parent, Function child) {
    const int error = pthread_atfork(prepare, parent, child);
    LOCKSTEP_ASSERT(error == 0, "pthread_atfork: {}", error);
  }
};

}  // namespace lockstep
