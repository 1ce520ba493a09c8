// Results that are computed when they are first read (Note [Pending values]): what else may happen to operands and
// results meanwhile.

#include "tests/support/pending_values.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

using testing::AtTheCall;
using testing::bits;
using testing::error_of;
using testing::is_pending;
using testing::make_input;
using testing::make_leaf;
using testing::same_bits;

/// A block as in LeNet; its operands.
struct Block {
  Tensor x = make_leaf({4, 2, 10, 10}, 1, kFloat32);
  Tensor weight = make_leaf({6, 2, 3, 3}, 2, kFloat32), bias = make_leaf({6}, 3, kFloat32);

  Tensor convolve() const { return conv2d(x, weight, bias); }
  Tensor operator()() const { return relu(max_pool2d(convolve(), 2)); }
  /// As if nothing had been left pending.
  std::vector<float> expected() const {
    const AtTheCall at_the_call;
    return bits((*this)());
  }
};

TEST(PendingValues, WhatIsComputedTogetherLeavesTheRestPending) {
  const Block block;
  const Tensor convolved = block.convolve(), pooled = max_pool2d(convolved, 2), result = relu(pooled);
  EXPECT_TRUE(is_pending(result));
  (void)bits(result);
  EXPECT_FALSE(is_pending(result));
  EXPECT_TRUE(is_pending(pooled));
  EXPECT_TRUE(is_pending(convolved));
  result.sum().backward();
  EXPECT_TRUE(is_pending(convolved));
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(bits(convolved), bits(block.convolve())));
}

TEST(PendingValues, ALayerBeginsWithItsInputComputed) {
  const Block block;
  const Tensor first = block(), second = linear(first.flatten(1), make_input({3, 96}, 4, kFloat32));
  EXPECT_FALSE(is_pending(first));
  EXPECT_TRUE(is_pending(second));
}

TEST(PendingValues, OrdinaryOperandsAreNotDeferred) {
  const Tensor x = make_input({4, 4}, 1, kFloat32);
  EXPECT_FALSE(is_pending(relu(x)));
  EXPECT_FALSE(is_pending(x + 1.0));
}

TEST(PendingValues, ErrorsOfArgumentsComeAtTheCall) {
  const Block block;
  EXPECT_NE(error_of([&] { (void)conv2d(block.x, ones({6, 3, 3, 3})); }).find("[conv2d]"), std::string::npos);
  EXPECT_NE(error_of([&] { (void)max_pool2d(block.convolve(), 20); }).find("[max_pool2d]"), std::string::npos);
}

TEST(PendingValues, InputsCountAsTheyWereAtTheCall) {
  using Change = std::function<void(Block&)>;
  const NoGradGuard no_grad;
  const std::pair<const char*, Change> changes[] = {
      {"fill_", [](Block& b) { b.x.fill_(3.0); }},
      {"add_", [](Block& b) { b.x.add_(1.0); }},
      {"mul_ by itself", [](Block& b) { b.weight.mul_(b.weight); }},
      {"copy_", [](Block& b) { b.bias.copy_(ones({6})); }},
      {"a view", [](Block& b) { b.x.select(0, 1).zero_(); }},
      {"detach()", [](Block& b) { b.weight.detach().zero_(); }},
      {"copy_values()", [](Block& b) { copy_values(zeros(b.weight.sizes()), b.weight); }},
      {"data()", [](Block& b) { b.x.data<float>()[5] = 9.0f; }},
      {"raw_data()", [](Block& b) { static_cast<float*>(b.weight.raw_data())[5] = 9.0f; }},
  };
  for (const auto& [what, change] : changes) {
    Block block;
    const std::vector<float> expected = block.expected();
    const Tensor result = block(), convolved = block.convolve();
    change(block);
    EXPECT_TRUE(same_bits(bits(result), expected)) << what;
    EXPECT_FALSE(is_pending(convolved)) << what;
    EXPECT_FALSE(same_bits(bits(block()), expected)) << what << " changed nothing";
  }
}

// An address that was given before the call, and is written through after it.
TEST(PendingValues, AnAddressGivenEarlierMayBeWrittenLater) {
  Block block;
  const std::vector<float> expected = block.expected();
  for (Tensor* const operand : {&block.x, &block.weight, &block.bias}) {
    float* const address = operand->data<float>();
    const Tensor result = block();
    const float kept = std::exchange(address[3], 1e6f);
    EXPECT_TRUE(same_bits(bits(result), expected));
    address[3] = kept;
  }
}

TEST(PendingValues, BorrowedMemoryMayBeWrittenLater) {
  Block block;
  const std::vector<float> expected = block.expected();
  std::vector<float> memory = bits(block.x);
  block.x = from_blob(memory.data(), block.x.sizes());
  const Tensor result = block();
  std::fill(memory.begin(), memory.end(), 0.0f);
  EXPECT_TRUE(same_bits(bits(result), expected));
}

TEST(PendingValues, AResultMayBeChangedInPlace) {
  const Block block;
  const NoGradGuard no_grad;
  const std::vector<float> expected = block.expected();
  Tensor convolved = block.convolve(), result = relu(max_pool2d(convolved, 2));
  convolved.zero_();  // after the pool has taken it
  EXPECT_TRUE(same_bits(bits(result), expected));
  EXPECT_EQ(convolved.sum().item(), 0.0);
  result = block();
  result += 1.0;
  EXPECT_FALSE(same_bits(bits(result), expected));
}

// As at once: the pool keeps positions alone, so its operand may be changed; a relu keeps its result.
TEST(PendingValues, InPlaceWhileRecording) {
  const Block block;
  const auto gradient = [&](bool changes) {
    block.weight.set_grad({});
    Tensor convolved = block.convolve();
    const Tensor pooled = max_pool2d(convolved, 2);
    if (changes) convolved.mul_(2.0);
    (changes ? pooled.sum() + convolved.sum() * 0.0 : pooled.sum()).backward();
    return bits(block.weight.grad());
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
  const Tensor rectified_result = relu(block.convolve());
  EXPECT_NE(error_of([&] { rectified_result.mul_(2.0); }).find("[mul_]"), std::string::npos);
}

TEST(PendingValues, AChangedInputIsNoticedByBackward) {
  const Block block;
  const Tensor result = block();
  {
    const NoGradGuard no_grad;
    block.x.zero_();
  }
  EXPECT_NE(error_of([&] { result.sum().backward(); }).find("[Conv2dBackward]"), std::string::npos);
}

TEST(PendingValues, ViewsReadTheSameValues) {
  const Block block;
  const NoGradGuard no_grad;
  const std::vector<float> expected = block.expected();
  for (int which = 0; which < 3; ++which) {
    const Tensor result = block();
    const Tensor view = which == 0 ? result.view({-1}) : which == 1 ? result.detach() : result;
    EXPECT_TRUE(same_bits(bits(view), expected));
    EXPECT_FALSE(is_pending(result));
  }
}

TEST(PendingValues, HooksMayReplaceAGradient) {
  const Block block;
  const auto gradient = [&](const std::function<Tensor(const Tensor&)>& hook) {
    for (const Tensor& each : {block.x, block.weight, block.bias}) each.set_grad({});
    const Tensor convolved = block.convolve();
    if (hook) convolved.register_hook(hook);
    relu(max_pool2d(convolved, 2)).sum().backward();
    std::vector<float> all = bits(block.weight.grad());
    for (const float value : bits(block.x.grad())) all.push_back(value);
    return all;
  };
  const std::vector<float> plain = gradient({});
  Tensor kept;
  EXPECT_TRUE(same_bits(gradient([](const Tensor& grad) { return grad.clone(); }), plain));
  EXPECT_TRUE(same_bits(gradient([&](const Tensor& grad) { return kept = grad, Tensor(); }), plain));
  EXPECT_EQ(kept.sizes(), block.convolve().sizes());
  EXPECT_TRUE(same_bits(gradient([](const Tensor& grad) { return grad.data<float>()[0] += 0.0f, Tensor(); }), plain));
  // Twice the gradient: powers of two change no rounding.
  std::vector<float> twice = gradient([](const Tensor& grad) { return grad * 2.0; });
  for (float& value : twice) value /= 2.0f;
  EXPECT_TRUE(same_bits(twice, plain));
  std::vector<float> in_place = gradient([](const Tensor& grad) { return grad.mul_(2.0), Tensor(); });
  for (float& value : in_place) value /= 2.0f;
  EXPECT_TRUE(same_bits(in_place, plain));
}

TEST(PendingValues, RetainedGradientsAreTheWholeOnes) {
  const Block block;
  const auto gradients = [&] {
    const Tensor convolved = block.convolve(), pooled = max_pool2d(convolved, 2);
    convolved.retain_grad();
    pooled.retain_grad();
    relu(pooled).sum().backward();
    return std::pair(bits(convolved.grad()), bits(pooled.grad()));
  };
  const auto fused = gradients();
  const AtTheCall at_the_call;
  const auto plain = gradients();
  EXPECT_TRUE(same_bits(fused.first, plain.first));
  EXPECT_TRUE(same_bits(fused.second, plain.second));
}

TEST(PendingValues, AResultUsedTwice) {
  const Block block;
  const auto gradient = [&] {
    block.weight.set_grad({});
    const Tensor convolved = block.convolve(), rectified_result = relu(convolved);
    (max_pool2d(rectified_result, 2).sum() + rectified_result.square().sum() + convolved.sum()).backward();
    return bits(block.weight.grad());
  };
  const std::vector<float> fused = gradient();
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(fused, gradient()));
}

TEST(PendingValues, BackwardTwice) {
  const Block block;
  const Tensor result = block().sum();
  result.backward({}, true);
  const std::vector<float> once = bits(block.weight.grad());
  block.weight.set_grad({});
  result.backward();
  EXPECT_TRUE(same_bits(bits(block.weight.grad()), once));
  EXPECT_NE(error_of([&] { result.backward(); }).find("freed by an earlier backward()"), std::string::npos);
}

// Nobody reads the result before its gradient comes.
TEST(PendingValues, BackwardOfAResultThatWasNeverRead) {
  const Block block;
  const Tensor seed = make_input({4, 6, 4, 4}, 5, kFloat32);
  block().backward(seed);
  const std::vector<float> fused = bits(block.weight.grad());
  block.weight.set_grad({});
  const AtTheCall at_the_call;
  block().backward(seed);
  EXPECT_TRUE(same_bits(fused, bits(block.weight.grad())));
}

TEST(PendingValues, AnotherThreadMayRead) {
  const Block block;
  const std::vector<float> expected = block.expected();
  for (int i = 0; i < 20; ++i) {
    const Tensor convolved = block.convolve(), result = relu(max_pool2d(convolved, 2));
    std::vector<std::vector<float>> seen(3);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < seen.size(); ++t)
      threads.emplace_back([&, t] {
        if (t == 2) (void)bits(convolved);
        seen[t] = bits(result);
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& each : seen) EXPECT_TRUE(same_bits(each, expected));
  }
}

// One thread leaves results pending and hands them on; another changes the weights.
// At any time between the steps of an operation that would be joined to it.
TEST(PendingValues, AnotherThreadMayComputeWhileAnOperationIsJoined) {
  const NoGradGuard no_grad;
  const Block block;
  const std::vector<float> expected = bits(relu(block.convolve()));
  for (int i = 0; i < 2000; ++i) {
    const Tensor y = block.convolve();
    std::atomic<bool> begun = false;
    std::thread other([&] {
      begun = true;
      y.storage()->settle();
    });
    while (!begun) std::this_thread::yield();
    const Tensor rectified = relu(y);
    other.join();
    if (i % 500 == 0) {
      EXPECT_TRUE(same_bits(bits(rectified), expected));
    }
  }
}

TEST(PendingValues, AnotherThreadMayChangeInputsAfterwards) {
  Block block;
  const NoGradGuard no_grad;
  const std::vector<float> expected = block.expected();
  Tensor result;
  std::thread([&] {
    const NoGradGuard no_grad_here;
    result = block();
  }).join();
  block.weight.zero_();
  EXPECT_TRUE(same_bits(bits(result), expected));
}

// Threads that share the weights leave results pending, compute them and drop them, while others do.
TEST(PendingValues, ThreadsShareTheirInputs) {
  const Block block;
  const std::vector<float> expected = block.expected();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      const NoGradGuard no_grad;
      for (int i = 0; i < 25; ++i) {
        const Tensor result = block(), dropped = block();
        if (t == 0) Computation::settle_all();
        wrong[t] += !same_bits(bits(result), expected);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// A pool has two results, values and positions. Another thread may compute at any moment what there is by then.
TEST(PendingValues, AnotherThreadMayComputeBetweenTwoResults) {
  const auto gradient = [] {
    const Block block;
    block().sum().backward();
    return bits(block.weight.grad());
  };
  const std::vector<float> expected = gradient();
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) Computation::settle_all();
  });
  int wrong = 0;
  std::string said;
  try {
    for (int i = 0; i < 400; ++i) wrong += !same_bits(gradient(), expected);
  } catch (const Error& error) {
    said = error.what();
  }
  done = true;
  other.join();
  EXPECT_EQ(said, "");
  EXPECT_EQ(wrong, 0);
}

TEST(PendingValues, AnErrorLeavesTheResultPending) {
  const NoGradGuard no_grad;
  // 2^48 bytes are more than the address space has.
  const Tensor x = ones({std::int64_t{1} << 23, 1}), weight = ones({std::int64_t{1} << 23, 1});
  const Tensor result = relu(linear(x, weight));
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(error_of([&] { (void)result.data<float>(); }).find("the limit is 2^46"), std::string::npos);
    EXPECT_TRUE(is_pending(result));
  }
}

TEST(PendingValues, InputsAreFreedWithTheFirstRead) {
  const NoGradGuard no_grad;
  Block block;
  Tensor x = block.x.clone();
  const Tensor result = relu(conv2d(x, block.weight));
  EXPECT_GT(x.storage()->use_count(), 1u);
  (void)bits(result);
  EXPECT_EQ(x.storage()->use_count(), 1u);
  {
    const Tensor dropped = relu(conv2d(x, block.weight));
    EXPECT_GT(x.storage()->use_count(), 1u);
  }
  EXPECT_EQ(x.storage()->use_count(), 1u);
}

TEST(PendingValues, AwkwardLengthsOfChains) {
  const NoGradGuard no_grad;
  const Block block;
  Tensor result = block.convolve();
  for (int i = 0; i < 1000; ++i) result = relu(result);
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(bits(result), bits(relu(block.convolve()))));
}

}  // namespace
}  // namespace lockstep
