#include "lockstep/autograd/accumulate_grad.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "tests/support/probe_node.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;
using Log = std::vector<std::string>;

Tensor ones64(const Shape& sizes) {
  return ones(sizes, {.dtype = kFloat64});
}

TEST(Accumulation, GradientsAddUpUntilTheyAreCleared) {
  const Tensor x = make_leaf({3});
  EXPECT_FALSE(x.grad().defined());
  (x * 2.0).backward(ones64({3}));
  (x * 3.0).backward(ones64({3}));
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(3, 5.0));
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
  (x * 3.0).backward(ones64({3}));
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(3, 3.0));
}

TEST(Accumulation, AGradientInAFlatBufferStaysThere) {
  const Tensor buffer = zeros({10}, {.dtype = kFloat64});
  const Tensor x = make_leaf({2, 2}), y = make_leaf({3});
  const Tensor x_view = buffer.as_strided({2, 2}, {2, 1}, 1), y_view = buffer.as_strided({3}, {1}, 5);
  x.set_grad(x_view);
  y.set_grad(y_view);
  for (int step = 1; step <= 2; ++step) {
    (x * 2.0).sum().backward();
    (y * y).sum().backward();
    EXPECT_TRUE(x.grad().is_same(x_view));
    EXPECT_TRUE(y.grad().is_same(y_view));
    const std::vector<double> values = buffer.to_vector<double>();
    for (const std::size_t i : {0u, 8u, 9u}) EXPECT_EQ(values[i], 0.0);
    for (const std::size_t i : {1u, 2u, 3u, 4u}) EXPECT_EQ(values[i], 2.0 * step);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(values[5 + i], 2.0 * step * y.to_vector<double>()[i], 1e-15);
  }
}

TEST(Accumulation, AGradientWithGapsStaysInItsMemory) {
  const Tensor x = make_leaf({2, 3});
  const Tensor grad = make_strided(zeros({2, 3}, {.dtype = kFloat64}));
  x.set_grad(grad);
  (x * 4.0).sum().backward();
  EXPECT_TRUE(x.grad().is_same(grad));
  EXPECT_EQ(grad.to_vector<double>(), std::vector<double>(6, 4.0));
}

TEST(Accumulation, LeavesNeverShareTheirGradients) {
  const Tensor x = make_leaf({3}), y = make_leaf({3}), seed = ones64({3});
  (x + y).backward(seed);
  EXPECT_NE(x.grad().storage(), y.grad().storage());
  EXPECT_NE(x.grad().storage(), seed.storage());
  x.grad().data<double>()[0] = 100;
  EXPECT_EQ(y.grad().to_vector<double>()[0], 1.0);
  EXPECT_EQ(seed.to_vector<double>()[0], 1.0);
}

TEST(Accumulation, AnExpandedGradientGetsItsOwnMemory) {
  const Tensor x = make_leaf({2, 3});
  x.sum().backward();
  EXPECT_TRUE(x.grad().is_contiguous());
  x.grad().data<double>()[0] = 7;
  EXPECT_EQ(x.grad().to_vector<double>()[1], 1.0);
}

TEST(Accumulation, AGradientWhoseElementsShareMemoryIsReplacedByTheSum) {
  const Tensor x = make_leaf({2}), y = make_leaf({3, 3});
  x.set_grad(zeros({1}, {.dtype = kFloat64}).expand({2}));
  y.set_grad(ones64({5}).as_strided({3, 3}, {1, 1}, 0));
  (x * tensor(std::vector<double>{1, 5}) * 1.0).sum().backward();
  (y * 2.0).sum().backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{1, 5}));
  EXPECT_EQ(y.grad().to_vector<double>(), std::vector<double>(9, 3.0));
}

TEST(Accumulation, SetGradChecksItsArgument) {
  const Tensor x = make_leaf({3});
  EXPECT_EQ(error_of([&] { x.set_grad(zeros({3})); }),
            "[set_grad] the gradient is float32 [3] on cpu:0, the tensor float64 [3] on cpu:0");
  EXPECT_NE(error_of([&] { x.set_grad(ones64({4})); }).find("[set_grad]"), std::string::npos);
  EXPECT_NE(error_of([&] { x.set_grad(move_values(ones64({3}), {kCPU, 1})); }).find("cpu:1"), std::string::npos);
}

TEST(Hooks, RunOncePerPassAfterTheWholeGradientIsThere) {
  const Tensor x = make_leaf({});
  std::vector<double> seen;
  x.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    EXPECT_TRUE(leaf.is_same(x));
    seen.push_back(leaf.grad().item());
  });
  (x * 2.0 + x * 3.0 + x).backward();
  EXPECT_EQ(seen, std::vector<double>({6.0}));
  (x * 1.0).backward();
  EXPECT_EQ(seen, std::vector<double>({6.0, 7.0}));
}

TEST(Hooks, SeveralRunInTheOrderTheyWereAddedAndCanBeRemoved) {
  const Tensor x = make_leaf({});
  Log log;
  const auto add = [&](const char* label) {
    return x.register_post_accumulate_grad_hook([&log, label](const Tensor&) { log.push_back(label); });
  };
  const auto run = [&] {
    log.clear();
    (x * 2.0).backward();
    return log;
  };
  add("a");
  const std::uint64_t b = add("b");
  add("c");
  EXPECT_EQ(run(), Log({"a", "b", "c"}));
  x.remove_hook(b);
  EXPECT_EQ(run(), Log({"a", "c"}));
  x.remove_hook(b);
  x.remove_hook(12345);
  add("d");
  EXPECT_EQ(run(), Log({"a", "c", "d"}));
}

TEST(Hooks, OneMayRemoveItselfOrReplaceTheGradient) {
  const Tensor x = make_leaf({});
  int runs = 0;
  std::uint64_t key = 0;
  key = x.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    ++runs;
    leaf.remove_hook(key);
    leaf.set_grad(full({}, 42, {.dtype = kFloat64}));
  });
  (x * 2.0).backward();
  EXPECT_EQ(x.grad().item(), 42.0);
  (x * 2.0).backward();
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(x.grad().item(), 44.0);
}

TEST(Hooks, OneKeepsItsStateFromPassToPass) {
  const Tensor x = make_leaf({});
  std::vector<int> seen;
  x.register_post_accumulate_grad_hook([&seen, calls = 0](const Tensor&) mutable { seen.push_back(++calls); });
  for (int pass = 0; pass < 3; ++pass) (x * 2.0).backward();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
}

TEST(Hooks, OneThatHoldsItsOwnTensorIsRefused) {
  const Tensor x = make_leaf({}), other = make_leaf({});
  EXPECT_NE(error_of([&] {
              x.register_post_accumulate_grad_hook([x](const Tensor&) {});
            }).find("the hook holds the tensor that is to hold the hook"),
            std::string::npos);
  x.register_post_accumulate_grad_hook([&x, other](const Tensor&) {});
  EXPECT_EQ(x.impl()->use_count(), 1u);
}

TEST(Hooks, WhatARemovedOneHeldGoesWhileOtherThreadsMayUseTheLeaf) {
  const Tensor leaf = make_leaf({2});
  std::future<void> pass;
  std::future_status status = std::future_status::deferred;
  std::shared_ptr<int> held(new int(0), [&](int* number) {
    delete number;
    pass = std::async(std::launch::async, [&] { sum(leaf * 2.0).backward(); });
    status = pass.wait_for(std::chrono::seconds(5));
  });
  leaf.remove_hook(leaf.register_post_accumulate_grad_hook([held = std::move(held)](const Tensor&) {}));
  EXPECT_EQ(status, std::future_status::ready);
}

TEST(Hooks, AddedAfterForwardTheyStillRun) {
  const Tensor x = make_leaf({});
  const Tensor y = x * 2.0;
  int runs = 0;
  x.register_post_accumulate_grad_hook([&](const Tensor&) { ++runs; });
  y.backward();
  EXPECT_EQ(runs, 1);
}

TEST(Hooks, OnlyLeavesThatRequireGradientsTakeThem) {
  const Tensor x = make_leaf({});
  const char* message = "[register_post_accumulate_grad_hook] expected a leaf that requires gradients";
  EXPECT_EQ(error_of([&] { (x * 2.0).register_post_accumulate_grad_hook([](const Tensor&) {}); }), message);
  EXPECT_EQ(error_of([&] { make_input({}).register_post_accumulate_grad_hook([](const Tensor&) {}); }), message);
}

TEST(Hooks, AnExceptionInOneEndsThePass) {
  const Tensor x = make_leaf({});
  x.register_post_accumulate_grad_hook([](const Tensor&) { throw std::runtime_error("hook"); });
  EXPECT_THROW((x * 2.0).backward(), std::runtime_error);
  EXPECT_FALSE(Engine::running());
  EXPECT_EQ(x.grad().item(), 2.0);
}

/// A chain of layers, each with a weight whose gradient is logged; returns the order of the accumulations.
class Chain {
 public:
  Chain() {
    for (int i = 0; i < 4; ++i) {
      weights_.push_back(make_leaf({}, static_cast<std::uint32_t>(i + 1)));
      weights_.back().register_post_accumulate_grad_hook([this, i](const Tensor&) { order_.push_back(i); });
    }
  }
  Tensor forward() const {
    Tensor y = full({}, 2, {.dtype = kFloat64});
    for (const Tensor& weight : weights_) y = y * weight;
    return y;
  }
  const Tensor& weight(std::size_t i) const { return weights_[i]; }
  std::vector<int> backward(const Tensor& loss) {
    order_.clear();
    loss.backward();
    return order_;
  }

 private:
  std::vector<Tensor> weights_;
  std::vector<int> order_;
};

TEST(HookOrder, TheLastLayersGradientsAreReadyFirst) {
  Chain chain;
  EXPECT_EQ(chain.backward(chain.forward()), std::vector<int>({3, 2, 1, 0}));
}

// A gradient must not wait for the rest of the graph because its leaf was first used by an older one that still lives.
TEST(HookOrder, DoesNotDependOnOlderGraphs) {
  Chain chain;
  Tensor older = chain.weight(3) * 2.0;
  for (const std::size_t i : {2u, 1u, 0u}) older = older * chain.weight(i);
  EXPECT_EQ(chain.backward(chain.forward()), std::vector<int>({3, 2, 1, 0}));
}

TEST(HookOrder, AGradientIsAccumulatedBeforeEarlierLayersRun) {
  Log log;
  const Tensor first = make_leaf({}), second = make_leaf({});
  const Tensor kept = second * 1.0;  // an older use
  second.register_post_accumulate_grad_hook([&](const Tensor&) { log.push_back("second"); });
  first.register_post_accumulate_grad_hook([&](const Tensor&) { log.push_back("first"); });
  const Tensor a = logged({first}, log, "a");
  logged({a, second}, log, "b").backward();
  EXPECT_EQ(log, Log({"b", "second", "a", "first"}));
}

TEST(Accumulator, KeepsItsLeafAsLongAsAGraphUsesIt) {
  Tensor x = make_leaf({});
  {
    const Tensor y = x * 2.0, z = x * 3.0;
    EXPECT_EQ(x.impl()->use_count(), 2u);  // ours, and one for all graphs
    EXPECT_EQ(gradient_edge(x).node.get(), autograd_meta(x)->accumulator.load());
    EXPECT_EQ(x.impl()->use_count(), 2u);
  }
  EXPECT_EQ(x.impl()->use_count(), 1u);
  const Tensor again = x * 2.0;
  EXPECT_EQ(x.impl()->use_count(), 2u);
}

TEST(Accumulator, ForwardMayRunOnSeveralThreadsOverSharedLeaves) {
  for (int round = 0; round < 20; ++round) {
    const Tensor shared = make_leaf({2, 2}), fresh = make_leaf({2, 2}), x = ones64({2, 2});
    std::vector<std::thread> threads;
    std::vector<double> sums(4, 0);
    for (std::size_t t = 0; t < sums.size(); ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) sums[t] += ((x * shared) * shared + fresh).sum().item();
      });
    for (std::thread& thread : threads) thread.join();
    for (const double sum : sums) EXPECT_EQ(sum, sums[0]);
    EXPECT_EQ(shared.impl()->use_count(), 1u);
    EXPECT_EQ(fresh.impl()->use_count(), 1u);
  }
}

// A leaf that was given another value after forward, or a backward function that is wrong.
TEST(AccumulateGrad, AGradientThatDoesNotFitTheLeafSaysWhatToDo) {
  struct Gives final : Node {
    Tensor gradient;
    const char* name() const override { return "Gives"; }
    TensorList apply(TensorList) override { return {gradient}; }
  };
  const auto message = [](Tensor gradient) {
    const Tensor x = make_leaf({2}), y = zeros({}, {.dtype = kFloat64});
    record<Gives>(y, {&x})->gradient = std::move(gradient);
    return error_of([&] { y.backward(); });
  };
  EXPECT_EQ(message(zeros({5}, {.dtype = kFloat64})),
            "[backward] expected a float64 gradient of shape [2] on cpu:0 for a leaf, found float64 of shape [5] on "
            "cpu:0; a leaf that was given another value, device or type since forward() needs a forward() of its own, "
            "and a backward function returns gradients like the inputs");
  EXPECT_NE(message(zeros({2}, {.dtype = kFloat32})).find("found float32 of shape [2] on cpu:0"), std::string::npos);
  EXPECT_NE(message(zeros({2}, {.dtype = kFloat64, .device = Device(kCPU, 1)})).find("on cpu:1;"), std::string::npos);
}

// Two threads go through the same unused leaves. Who is behind finds the nodes made, and so catches up with the other:
// most of the way both are at one leaf.
TEST(Accumulator, ThreadsThatUseALeafAtOnceShareItsNode) {
  constexpr std::size_t kLeaves = 4'000;
  for (int round = 0; round < 50; ++round) {
    std::vector<Tensor> leaves(kLeaves);
    for (Tensor& leaf : leaves) leaf = zeros({}).requires_grad_();
    std::array<std::vector<const Node*>, 2> seen;
    std::atomic<int> arrived{0};
    const auto use_all = [&](std::size_t thread) {
      seen[thread].reserve(kLeaves);
      for (++arrived; arrived < 2;) std::this_thread::yield();
      for (const Tensor& leaf : leaves) seen[thread].push_back(gradient_edge(leaf).node.get());
    };
    std::thread other(use_all, 1);
    use_all(0);
    other.join();
    ASSERT_EQ(seen[0], seen[1]);
    for (const Tensor& leaf : leaves) ASSERT_EQ(leaf.impl()->use_count(), 1u);
  }
}

TEST(Accumulator, TheLeafMayGoBeforeTheGraph) {
  Tensor y;
  int runs = 0;
  {
    const Tensor x = make_leaf({});
    x.register_post_accumulate_grad_hook([&](const Tensor& leaf) { runs += leaf.grad().item() == 2.0; });
    y = x * 2.0;
  }
  y.backward();
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace lockstep
