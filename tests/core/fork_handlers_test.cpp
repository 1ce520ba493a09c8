// What runs around fork() is registered before main(): a fork() that another thread began just before the first use of
// the log, say, would leave the child with a lock that nobody opens.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>

#include "lockstep/core/factories.h"
#include "lockstep/core/log.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/temporary_path.h"

namespace {
std::atomic<int> registrations{0};
}

#ifndef __SANITIZE_THREAD__  // whose runtime registers handlers before instrumented code can run
// The C library's own, which pthread_atfork() calls; the program's comes first.
extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* library) {
  ++registrations;
  using Register = int(void (*)(), void (*)(), void (*)(), void*);
  static auto* const next = reinterpret_cast<Register*>(dlsym(RTLD_NEXT, "__register_atfork"));
  return next(prepare, parent, child, library);
}
#endif

namespace lockstep {
namespace {

TEST(ForkHandlers, AreRegisteredBeforeMain) {
  const int before = registrations;
  if (before == 0) GTEST_SKIP() << "handlers are not registered through __register_atfork() here";
  logging::enabled(logging::Level::warn);
  const testing::TemporaryPath profile;
  start_profile(profile.text());
  parallel_for(2, 1, [](std::int64_t, std::int64_t) {});
  zeros({2});
  stop_profile();
  EXPECT_EQ(registrations, before);
}

}  // namespace
}  // namespace lockstep
