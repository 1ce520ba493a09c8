#include "tests/support/refused_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace {
std::atomic<int> refusing{0};
}

// Stands before the C library's, and before a sanitizer's, which would end the process when the system refuses.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
  if (refusing.load() > 0) return EAGAIN;
  static auto* const next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, body, argument);
}

namespace lockstep::testing {

RefusedThreads::RefusedThreads() {
  ++refusing;
}
RefusedThreads::~RefusedThreads() {
  --refusing;
}

}  // namespace lockstep::testing
