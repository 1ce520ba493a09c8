// Passes of several threads at once whose graphs meet.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

constexpr int kThreads = 4, kRounds = 200;

void in_threads(const std::function<void(int)>& work) {
  std::vector<std::string> errors(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      try {
        for (int round = 0; round < kRounds; ++round) work(t);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(t)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(SharedLeaf, GradientsOfAllThreadsAddUp) {
  const Tensor w = full({16}, 2.0).requires_grad_();
  in_threads([&](int) { (w * 3.0).sum().backward(); });
  for (const float value : w.grad().to_vector<float>()) EXPECT_EQ(value, 3.0F * kThreads * kRounds);
}

// The optimizer inside backward: each gradient is used and taken away before the next arrives.
TEST(SharedLeaf, AHookHasTheGradientToItself) {
  const Tensor w = full({16}, 2.0).requires_grad_();
  int calls = 0, wrong = 0;  // of one thread at a time
  w.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    ++calls;
    const Tensor gradient = leaf.grad();
    if (!gradient.defined() || gradient.to_vector<float>() != std::vector<float>(16, 3.0F)) ++wrong;
    leaf.set_grad({});
  });
  in_threads([&](int) { (w * 3.0).sum().backward(); });
  EXPECT_EQ(calls, kThreads * kRounds);
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(w.grad().defined());
}

// Two threads, each in a hook of one leaf, run passes that end at both.
TEST(SharedLeaf, HooksWhosePassesCrossDoNotWaitForEachOther) {
  const Tensor a = full({2}, 2.0).requires_grad_(), b = full({2}, 3.0).requires_grad_();
  std::atomic<int> inside = 0;
  const auto cross = [&](const Tensor&) {
    thread_local bool nested = false;
    if (nested) return;
    nested = true;
    ++inside;
    for (int wait = 0; inside.load() < 2 && wait < 2000; ++wait)  // until both are in theirs
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const EnableGradGuard recording;
    (a + b).sum().backward();
    nested = false;
  };
  a.register_post_accumulate_grad_hook(cross);
  b.register_post_accumulate_grad_hook(cross);
  std::thread first([&] { (a * 2.0).sum().backward(); }), second([&] { (b * 2.0).sum().backward(); });
  first.join();
  second.join();
  for (const Tensor* each : {&a, &b})
    for (const float value : each->grad().to_vector<float>()) EXPECT_EQ(value, 4.0F);
}

// Of both kinds, while passes of other threads arrive.
TEST(SharedLeaf, HooksComeAndGoBesidePasses) {
  const Tensor w = full({16}, 2.0).requires_grad_();
  std::atomic<int> calls = 0;
  in_threads([&](int t) {
    for (int i = 0; i < 20; ++i) {
      if (t % 2 == 0) {
        (w * 3.0).sum().backward();
        continue;
      }
      const auto after = w.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
      const auto before = w.register_hook([&](const Tensor&) { ++calls; });
      w.remove_hook(after);
      w.remove_hook(before);
    }
  });
  for (const float value : w.grad().to_vector<float>()) EXPECT_EQ(value, 3.0F * 20 * kRounds * kThreads / 2);
  const int before = calls;
  (w * 3.0).sum().backward();
  EXPECT_EQ(calls, before);
}

TEST(SharedLeaf, AHookThatIsRemovedHasEnded) {
  const Tensor w = full({2}, 2.0).requires_grad_();
  std::atomic<bool> begun = false, ended = false;
  const auto key = w.register_post_accumulate_grad_hook([&](const Tensor&) {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
  });
  std::thread other([&] { (w * 3.0).sum().backward(); });
  while (!begun) std::this_thread::yield();
  w.remove_hook(key);
  EXPECT_TRUE(ended);
  other.join();
}

// Two threads, each in a hook of one leaf, take the hook of the other.
TEST(SharedLeaf, HooksThatRemoveEachOtherDoNotWaitForEachOther) {
  const Tensor leaves[] = {full({2}, 2.0).requires_grad_(), full({2}, 3.0).requires_grad_()};
  std::atomic<int> inside = 0;
  std::uint64_t keys[2];
  for (int i = 0; i < 2; ++i)
    keys[i] = leaves[i].register_post_accumulate_grad_hook([&, i](const Tensor& leaf) {
      ++inside;
      for (int wait = 0; inside.load() < 2 && wait < 2000; ++wait)  // until both are in theirs
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      leaves[1 - i].remove_hook(keys[1 - i]);
      leaf.register_post_accumulate_grad_hook([&](const Tensor&) { ++inside; });
    });
  const auto pass = [&](int i) { (leaves[i] * 2.0).sum().backward(); };
  std::thread first(pass, 0), second(pass, 1);
  first.join();
  second.join();
  EXPECT_EQ(inside, 2);
  pass(0);
  pass(1);
  EXPECT_EQ(inside, 4);
}

TEST(SharedLeaf, APassInsideAHookMayReachTheLeafAgain) {
  const Tensor w = full({2}, 2.0).requires_grad_();
  int calls = 0;
  w.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    if (calls++ % 2 != 0) return;
    const EnableGradGuard recording;
    (leaf * 5.0).sum().backward();
  });
  in_threads([&](int) { (w * 3.0).sum().backward(); });
  EXPECT_EQ(calls, 2 * kThreads * kRounds);
  for (const float value : w.grad().to_vector<float>()) EXPECT_EQ(value, 8.0F * kThreads * kRounds);
}

TEST(SharedLeaf, EachThreadHasTheGradientThatItAskedFor) {
  const Tensor w = full({16}, 2.0).requires_grad_();
  std::atomic<int> wrong = 0;
  in_threads([&](int t) {
    const Tensor gradient = grad({(w * w * static_cast<double>(t + 1)).sum()}, {w})[0];
    for (const float value : gradient.to_vector<float>()) wrong += value != 4.0F * static_cast<float>(t + 1);
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(w.grad().defined());
}

TEST(SharedLeaf, AGraphThatIsRetainedMayBeSharedToo) {
  const Tensor w = full({16}, 2.0).requires_grad_(), y = (w * w).sum();
  std::atomic<int> wrong = 0;
  in_threads([&](int) {
    const Tensor gradient = grad({y}, {w}, {}, {.retain_graph = true})[0];
    for (const float value : gradient.to_vector<float>()) wrong += value != 4.0F;
  });
  EXPECT_EQ(wrong, 0);
}

// The other thread's pass stands in the hook while this one runs.
TEST(SharedLeaf, ASharedGraphIsNotFreedUnderAnotherPass) {
  const Tensor w = full({2}, 2.0).requires_grad_(), square = w * w, y = square.sum();
  std::string error;
  const auto key = square.register_hook(
      [&](const Tensor&) { std::thread([&] { error = error_of([&] { grad({y}, {w}); }); }).join(); });
  grad({y}, {w}, {}, {.retain_graph = true});
  square.remove_hook(key);
  EXPECT_NE(error.find("which another thread's runs too; pass retain_graph = true"), std::string::npos) << error;
  EXPECT_EQ(grad({y}, {w})[0].to_vector<float>(), (std::vector<float>{4.0F, 4.0F}));
}

const char* const kShared = "which another thread's runs too; pass retain_graph = true";

TEST(SharedGraph, RetainedGradientsOfAllThreadsAddUp) {
  const Tensor w = full({16}, 2.0).requires_grad_(), h = w * 1.5, y = (h * h).sum();
  h.retain_grad();
  in_threads([&](int) { y.backward({}, /*retain_graph=*/true); });
  for (const float value : h.grad().to_vector<float>()) EXPECT_EQ(value, 6.0F * kThreads * kRounds);
  for (const float value : w.grad().to_vector<float>()) EXPECT_EQ(value, 9.0F * kThreads * kRounds);
}

// The pass that frees stands in the hook while the other thread's runs.
TEST(SharedGraph, NoOtherPassRunsWhatOneFrees) {
  const Tensor w = full({2}, 2.0).requires_grad_(), square = w * w, y = square.sum();
  std::vector<std::string> errors;
  square.register_hook([&](const Tensor&) {
    std::thread([&] {
      errors.push_back(error_of([&] { grad({y}, {w}, {}, {.retain_graph = true}); }));
      errors.push_back(error_of([&] { grad({y}, {w}, {}, {.create_graph = true}); }));
      errors.push_back(error_of([&] { y.backward(); }));
    }).join();
  });
  y.backward();
  ASSERT_EQ(errors.size(), 3U);
  for (const std::string& error : errors) EXPECT_NE(error.find(kShared), std::string::npos) << error;
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{4.0F, 4.0F}));
}

// A pass inside retains, but the one around it frees the nodes that both have reached.
TEST(SharedGraph, APassInsideDoesNotOpenTheGraphToOtherThreads) {
  const Tensor w = full({2}, 2.0).requires_grad_(), square = w * w, y = square.sum();
  std::string error;
  bool inside = false;
  square.register_hook([&](const Tensor&) {
    if (inside)
      return std::thread([&] { error = error_of([&] { grad({y}, {w}, {}, {.retain_graph = true}); }); }).join();
    inside = true;
    grad({y}, {w}, {}, {.retain_graph = true});
  });
  y.backward();
  EXPECT_NE(error.find(kShared), std::string::npos) << error;
}

// Two passes retain the graph. The one that came first ends first, the other still runs when a third would free it.
TEST(SharedGraph, WhoCameSecondKeepsTheGraphAsWell) {
  const Tensor w = full({2}, 2.0).requires_grad_(), square = w * w, y = square.sum();
  std::promise<void> second_runs, first_ended;
  std::vector<float> of_second;
  std::thread second;
  std::atomic<int> passes = 0;
  square.register_hook([&](const Tensor&) {
    if (passes++ == 0) {
      second = std::thread([&] { of_second = grad({y}, {w}, {}, {.retain_graph = true})[0].to_vector<float>(); });
      second_runs.get_future().wait();
    } else if (passes == 2) {
      second_runs.set_value();
      first_ended.get_future().wait();
    }
  });
  grad({y}, {w}, {}, {.retain_graph = true});
  const std::string error = error_of([&] { y.backward(); });
  first_ended.set_value();
  second.join();
  EXPECT_NE(error.find(kShared), std::string::npos) << error;
  EXPECT_EQ(of_second, (std::vector<float>{4.0F, 4.0F}));
  y.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{4.0F, 4.0F}));
}

// Whatever comes first, each pass has the right gradient or the right error.
TEST(SharedGraph, OneFreesWhatOthersRun) {
  std::atomic<int> wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Tensor w = full({4}, 0.5, kFloat64).requires_grad_();
    Tensor h = w;
    for (int i = 0; i < 10; ++i) h = tanh(h * w);
    const Tensor y = h.sum();
    const std::vector<double> expected = grad({y}, {w}, {}, {.retain_graph = true})[0].to_vector<double>();
    std::atomic<int> ready = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        try {
          if (t == 0) return y.backward();
          const GradOptions options{.retain_graph = true, .create_graph = round % 2 == 0};
          if (grad({y}, {w}, {}, options)[0].to_vector<double>() != expected) ++wrong;
        } catch (const Error& error) {
          const std::string message = error.what();
          const bool is_right = message.find("which another thread's runs too") != std::string::npos ||
                                message.find("was freed by an earlier backward()") != std::string::npos;
          if (!is_right) ADD_FAILURE() << message;
        }
      });
    for (std::thread& thread : threads) thread.join();
    if (w.grad().defined() && w.grad().to_vector<double>() != expected) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace lockstep::testing
