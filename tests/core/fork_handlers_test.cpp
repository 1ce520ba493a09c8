// What runs around fork() is registered before main(): a fork() that another thread began just before the first use of
// the log, say, would leave the child with a lock that nobody opens. Nothing of it asks for memory in the child, where
// the lock of what serves it may never be opened either: glibc sees to its own, sanitizers do not.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

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

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
namespace {
std::atomic<int> allocations{0};
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
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

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
/// What `status` gives in a forked child, from 0 to 255.
template <typename Status>
int in_child(Status status) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(status());
  int ended = -1;
  ::waitpid(child, &ended, 0);
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
}

TEST(ForkHandlers, AskForNoMemoryInTheChild) {
  const int threads = num_threads();
  set_num_threads(3);
  parallel_for(3, 1, [](std::int64_t, std::int64_t) {});
  logging::set_prefix("a prefix that is longer than what a string keeps in itself: ");
  const int before = allocations;  // those before the fork are in both counts
  const int childs = in_child([&] { return allocations - before; });
  EXPECT_EQ(childs, allocations - before);
  EXPECT_EQ(in_child([] { return num_threads(); }), 3);
  logging::set_prefix("");
  set_num_threads(threads);
}
#endif

}  // namespace
}  // namespace lockstep
