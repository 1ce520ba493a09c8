// Passes of several threads at once whose graphs meet.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/autograd/backward.h"
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

}  // namespace
}  // namespace lockstep::testing
