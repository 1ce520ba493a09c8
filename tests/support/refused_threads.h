#pragma once

// While one lives, the system refuses every new thread, of any thread of this process. With refused_threads.cpp, which
// a test's program has as a source of its own.

namespace lockstep::testing {

class RefusedThreads {
 public:
  RefusedThreads();
  ~RefusedThreads();
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
};

}  // namespace lockstep::testing
