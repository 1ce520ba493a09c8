#include "lockstep/core/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/refused_threads.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;

/// Restores the number of threads.
class ThreadPool : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(before_); }

 private:
  int before_ = num_threads();
};

TEST_F(ThreadPool, EveryElementIsVisitedOnceInTheSameBlocks) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    EXPECT_EQ(num_threads(), threads);
    for (const std::int64_t count : {0, 1, 7, 10, 11, 1000}) {
      std::vector<int> visits(static_cast<std::size_t>(count), 0);
      std::mutex mutex;
      std::set<std::pair<std::int64_t, std::int64_t>> blocks;
      parallel_for(count, 10, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        const std::lock_guard lock(mutex);
        blocks.insert({begin, end});
      });
      EXPECT_EQ(std::accumulate(visits.begin(), visits.end(), std::int64_t{0}), count);
      EXPECT_EQ(static_cast<std::int64_t>(blocks.size()), (count + 9) / 10);
      for (const auto& [begin, end] : blocks) {
        EXPECT_EQ(begin % 10, 0);
        EXPECT_EQ(end, std::min(begin + 10, count));
      }
    }
  }
}

TEST_F(ThreadPool, WorkRunsOnSeveralThreads) {
  set_num_threads(2);
  // Each block waits for the other one: one thread alone could not finish. The deadline bounds a failure.
  std::atomic<int> inside{0};
  std::atomic<bool> met{true};
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    ++inside;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (inside.load() < 2 && met) {
      if (std::chrono::steady_clock::now() > deadline) met = false;
      std::this_thread::yield();
    }
  });
  EXPECT_TRUE(met.load());
}

TEST_F(ThreadPool, EachThreadBeginsWithItsOwnPart) {
  set_num_threads(3);
  constexpr int kBlocks = 30, kPart = 10;
  const auto caller = std::this_thread::get_id();
  std::map<std::thread::id, std::set<std::int64_t>> parts;  // where each thread began
  for (int loop = 0; loop < 20; ++loop) {
    std::mutex mutex;
    std::set<std::thread::id> seen;
    parallel_for(kBlocks, 1, [&](std::int64_t begin, std::int64_t) {
      {
        std::lock_guard lock(mutex);
        if (seen.insert(std::this_thread::get_id()).second) parts[std::this_thread::get_id()].insert(begin / kPart);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  }
  EXPECT_EQ(parts[caller], (std::set<std::int64_t>{0}));
  // A worker may come when another has helped with its part to the end, but not to every loop.
  std::set<std::int64_t> all;
  for (const auto& [thread, begun] : parts) all.insert(begun.begin(), begun.end());
  EXPECT_EQ(all, (std::set<std::int64_t>{0, 1, 2}));
}

TEST_F(ThreadPool, TheExceptionOfTheFirstBlockIsRethrownAfterAllBlocksRan) {
  for (const int threads : {1, 2, 4}) {
    set_num_threads(threads);
    std::atomic<int> ran{0};
    const auto body = [&](std::int64_t begin, std::int64_t) {
      ++ran;
      if (begin == 3 || begin == 60) throw std::runtime_error("block " + std::to_string(begin));
    };
    try {
      parallel_for(100, 1, body);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "block 3");
    }
    EXPECT_EQ(ran.load(), 100);
    int after = 0;
    parallel_for(1, 1, [&](std::int64_t, std::int64_t) { ++after; });
    EXPECT_EQ(after, 1);
  }
}

TEST_F(ThreadPool, NestedLoopsRunOnTheThreadThatCallsThem) {
  set_num_threads(4);
  std::atomic<int> foreign{0};
  std::atomic<std::int64_t> total{0};
  parallel_for(16, 1, [&](std::int64_t, std::int64_t) {
    const auto outer = std::this_thread::get_id();
    parallel_for(100, 10, [&](std::int64_t begin, std::int64_t end) {
      if (std::this_thread::get_id() != outer) ++foreign;
      total += end - begin;
    });
  });
  EXPECT_EQ(foreign.load(), 0);
  EXPECT_EQ(total.load(), 1600);
}

TEST_F(ThreadPool, AnExceptionInANestedLoopReachesTheOuterCaller) {
  set_num_threads(2);
  EXPECT_THROW(parallel_for(4, 1,
                            [&](std::int64_t, std::int64_t) {
                              parallel_for(4, 1, [](std::int64_t begin, std::int64_t) {
                                if (begin == 2) throw std::logic_error("inner");
                              });
                            }),
               std::logic_error);
}

TEST_F(ThreadPool, SeveralThreadsMayLoopAtOnce) {
  set_num_threads(2);
  std::atomic<std::int64_t> sums[3] = {0, 0, 0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c)
    callers.emplace_back([&, c] {
      for (int repeat = 0; repeat < 300; ++repeat)
        parallel_for(64, 4, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) sums[c] += i;
        });
    });
  for (std::thread& caller : callers) caller.join();
  for (const auto& sum : sums) EXPECT_EQ(sum.load(), 300 * 63 * 32);
}

TEST_F(ThreadPool, TheNumberOfThreadsMayChangeBetweenLoops) {
  std::atomic<std::int64_t> total{0};
  for (int repeat = 0; repeat < 60; ++repeat) {
    set_num_threads(1 + repeat % 4);
    parallel_for(40, 2, [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
  }
  EXPECT_EQ(total.load(), 60 * 40);
}

TEST_F(ThreadPool, WorkersThatSleptWakeUp) {
  set_num_threads(3);
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long past the time that workers spin
    std::atomic<int> ran{0};
    parallel_for(30, 1, [&](std::int64_t, std::int64_t) { ++ran; });
    EXPECT_EQ(ran.load(), 30);
  }
}

std::atomic<bool> holds_worker{false}, is_held{false};

void hold_worker(int) {
  is_held = true;
  while (holds_worker) usleep(1000);
}

// A signal handler holds the worker back, as another process on its core would.
TEST_F(ThreadPool, CallersDoNotWaitForWorkersThatHaveNotCome) {
  set_num_threads(2);
  const pthread_t caller = pthread_self();
  std::atomic<int> inside{0};
  pthread_t worker = caller;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    if (!pthread_equal(pthread_self(), caller)) worker = pthread_self();
    ++inside;
    while (inside.load() < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  ASSERT_FALSE(pthread_equal(worker, caller));
  struct sigaction action {
  }, before{};
  action.sa_handler = hold_worker;
  ASSERT_EQ(sigaction(SIGUSR2, &action, &before), 0);
  holds_worker = true;
  ASSERT_EQ(pthread_kill(worker, SIGUSR2), 0);
  while (!is_held && std::chrono::steady_clock::now() < deadline) usleep(1000);
  ASSERT_TRUE(is_held);
  // Whatever happens, the worker goes on after two seconds.
  std::thread release([] {
    for (int i = 0; i < 200 && holds_worker; ++i) usleep(10000);
    holds_worker = false;
  });
  std::atomic<int> ran{0};
  for (int repeat = 0; repeat < 20; ++repeat) parallel_for(30, 1, [&](std::int64_t, std::int64_t) { ++ran; });
  EXPECT_TRUE(holds_worker) << "the loops ended with the worker";
  EXPECT_EQ(ran.load(), 20 * 30);
  holds_worker = false;
  release.join();
  set_num_threads(1);  // the worker is through with the handler
  sigaction(SIGUSR2, &before, nullptr);
}

TEST_F(ThreadPool, AForkedChildHasWorkersOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's runtime cannot start threads in the child of a process with threads";
#endif
  set_num_threads(2);
  parallel_for(100, 1, [](std::int64_t, std::int64_t) {});  // the workers exist now
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends the child, and fails the test
    std::atomic<std::int64_t> sum{0};
    if (num_threads() != 2) _exit(2);
    parallel_for(100, 1, [&](std::int64_t begin, std::int64_t) { sum += begin; });
    set_num_threads(1);
    set_num_threads(4);
    parallel_for(100, 1, [&](std::int64_t begin, std::int64_t) { sum += begin; });
    _exit(sum == 2 * 4950 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

TEST_F(ThreadPool, AThreadThatCannotBeStartedIsAnErrorAndTheNextLoopTriesAgain) {
  set_num_threads(3);
  {
    const lockstep::testing::RefusedThreads none;
    const std::string message = error_of([] { parallel_for(100, 1, [](std::int64_t, std::int64_t) {}); });
    EXPECT_NE(message.find("cannot start a thread for parallel_for"), std::string::npos) << message;
  }
  std::mutex mutex;
  std::set<std::thread::id> seen;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  parallel_for(3, 1, [&](std::int64_t, std::int64_t) {
    std::unique_lock lock(mutex);
    seen.insert(std::this_thread::get_id());
    while (seen.size() < 3 && std::chrono::steady_clock::now() < deadline) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  });
  EXPECT_EQ(seen.size(), 3u);
}

TEST_F(ThreadPool, ANumberOutOfRangeIsAnError) {
  EXPECT_EQ(error_of([] { set_num_threads(0); }), "the number of threads must be from 1 to 1024; got 0");
  EXPECT_EQ(error_of([] { set_num_threads(5000); }), "the number of threads must be from 1 to 1024; got 5000");
}

}  // namespace
}  // namespace lockstep
