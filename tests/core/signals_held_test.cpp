#include "lockstep/core/cpu/signals_held.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

// Where the computing thread's stack lies, and how many handlers ran elsewhere.
const char *stack_begin, *stack_end;
volatile std::sig_atomic_t handled = 0, elsewhere = 0;

void look_where(int) {
  const char here = 0;
  handled = handled + 1;
  if (&here < stack_begin || &here >= stack_end) elsewhere = elsewhere + 1;
}

// Note [Signals and oneDNN]. Where a handler's frame lies elsewhere, the heap is damaged, and this process with it.
TEST(SignalsHeld, HandlersFindTheStackWhileProductsAreComputed) {
  pthread_attr_t attributes;
  void* begin = nullptr;
  std::size_t size = 0;
  ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  pthread_attr_getstack(&attributes, &begin, &size);
  pthread_attr_destroy(&attributes);
  stack_begin = static_cast<const char*>(begin);
  stack_end = stack_begin + size;
  struct sigaction action {
  }, before{};
  action.sa_handler = look_where;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR2, &action, &before), 0);
  const int threads = num_threads();
  set_num_threads(1);

  constexpr std::int64_t kSide = 128, kInner = 512;
  const std::vector<float> a(kSide * kInner, 1.0f), b(kInner * kSide, 1.0f);
  std::vector<float> out(kSide * kSide);
  Gemm<float> g;
  g.m = g.n = kSide;
  g.k = kInner;
  g.a = {.data = a.data(), .stride = kInner};
  g.b = {.data = b.data(), .stride = kSide};
  g.out = out.data();
  g.out_stride = kSide;
  std::atomic<bool> stop = false;
  std::thread sender([&, target = pthread_self()] {
    while (!stop) {
      pthread_kill(target, SIGUSR2);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
  while (elsewhere == 0 && std::chrono::steady_clock::now() < end) gemm(g);
  stop = true;
  sender.join();
  sigaction(SIGUSR2, &before, nullptr);
  set_num_threads(threads);
  EXPECT_GT(handled, 0);
  EXPECT_EQ(elsewhere, 0) << "of " << handled << " handlers";
  EXPECT_EQ(out.front(), static_cast<float>(kInner));
}

}  // namespace
}  // namespace lockstep::cpu
