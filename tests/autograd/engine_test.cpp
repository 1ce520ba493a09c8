#include "lockstep/autograd/engine.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <link.h>
#include <pthread.h>

#include <stdexcept>
#include <thread>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/record.h"
#include "tests/support/probe_node.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;
using Log = std::vector<std::string>;

Tensor leaf(double value) {
  const Tensor x = full({}, value, {.dtype = kFloat64});
  x.set_requires_grad(true);
  return x;
}

TEST(Engine, AnOperationRunsAfterEverythingThatUsedItsResult) {
  Log log;
  const Tensor x = leaf(1);
  const Tensor a = logged({x}, log, "a");
  const Tensor b = logged({a}, log, "b");
  const Tensor c = logged({a, b}, log, "c");
  const Tensor d = logged({a}, log, "d");
  logged({c, d, b}, log, "e").backward();
  EXPECT_EQ(log, Log({"e", "d", "c", "b", "a"}));
  EXPECT_EQ(x.grad().item(), 4.0);  // paths through a b c e, a c e, a d e and a b e
}

TEST(Engine, ALongWayAroundIsWaitedFor) {
  Log log;
  const Tensor x = leaf(1);
  const Tensor trunk = logged({x}, log, "trunk");
  const Tensor late = logged({trunk}, log, "late");  // made early, so its number is low
  Tensor way = trunk;
  for (int i = 0; i < 5; ++i) way = logged({way}, log, "way");
  logged({way, late}, log, "end").backward();
  EXPECT_EQ(log.front(), "end");
  EXPECT_EQ(log.back(), "trunk");
  EXPECT_EQ(log.size(), 8u);
  EXPECT_EQ(x.grad().item(), 2.0);
}

TEST(Engine, DiamondsTakeLinearTime) {
  const Tensor x = leaf(1);
  Tensor y = x;
  for (int i = 0; i < 60; ++i) y = y + y;  // 2^60 paths
  y.backward();
  EXPECT_EQ(x.grad().item(), 0x1p60);
}

TEST(Engine, GradientsOfAnExpression) {
  const Tensor x = leaf(3), w = leaf(2);
  const Tensor h = x * w;
  const Tensor loss = h * h + x * 5.0 - w / x;
  loss.backward();
  EXPECT_NEAR(x.grad().item(), 2 * 6 * 2 + 5 + 2.0 / 9, 1e-12);
  EXPECT_NEAR(w.grad().item(), 2 * 6 * 3 - 1.0 / 3, 1e-12);
}

TEST(Engine, ASecondBackwardNeedsTheGraphKept) {
  const Tensor x = leaf(3);
  const Tensor y = x * x;
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(x.grad().item(), 12.0);
  EXPECT_EQ(error_of([&] { y.backward(); }),
            "[backward] the graph of MulBackward was freed by an earlier backward(); pass retain_graph = true to the "
            "first call to run it twice");
  EXPECT_EQ(x.grad().item(), 12.0);
}

TEST(Engine, TwoLossesMayShareALeafButNotAFreedTrunk) {
  const Tensor x = leaf(3);
  const Tensor trunk = x * x;
  const Tensor one = trunk * 2.0, two = trunk * 3.0, apart = x * 10.0;
  one.backward();
  apart.backward();
  EXPECT_EQ(x.grad().item(), 22.0);
  EXPECT_NE(error_of([&] { two.backward(); }).find("freed by an earlier backward()"), std::string::npos);
}

TEST(Engine, SeveralRootsAtOnce) {
  const Tensor x = leaf(3);
  const Tensor a = x * 2.0;
  const Tensor b = a * a;  // a is also an ancestor of b
  const std::vector<Tensor> roots = {a, b, a};
  const std::vector<Tensor> gradients(3, ones({}, {.dtype = kFloat64}));
  backward(roots, gradients);
  EXPECT_EQ(x.grad().item(), 2 + 8 * 3 + 2);
}

TEST(Engine, ALeafMayBeTheRoot) {
  const Tensor x = make_leaf({2, 2});
  const Tensor seed = make_input({2, 2}, 5);
  x.backward(seed);
  expect_close(x.grad(), seed, 0, 0);
  EXPECT_NE(x.grad().storage(), seed.storage());
}

TEST(Engine, WrongCallsAreErrors) {
  const Tensor x = make_leaf({2, 3});
  const Tensor y = x * 2.0;
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] { y.backward(); }, "[backward] a gradient must be given for a tensor of shape [2, 3]"},
      {[&] {
         y.backward(ones({3, 2}, {.dtype = kFloat64}));
       },
       "does not match it: expected float64 [2, 3] on cpu:0"},
      {[&] {
         y.backward(ones({2, 3}));
       },
       "does not match it"},
      {[&] { make_input({}).backward(); }, "does not require gradients"},
      {[&] { Tensor().backward(); }, "[backward] the tensor is undefined"},
      {[&] { backward({}, {}); }, "found 0 roots and 0 gradients"},
      {[&] { Engine::queue_callback([] {}); }, "[queue_callback] no backward() runs on this thread"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
  y.backward(ones({2, 3}, {.dtype = kFloat64}));  // the graph is as it was
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(6, 2.0));
}

TEST(Engine, AnExceptionLeavesEverythingUsable) {
  const Tensor x = leaf(3);
  const Tensor head = x * 2.0;
  bool fail = true;
  bool called_back = false;
  const Tensor y = probe({head}, 1, [&] {
    Engine::queue_callback([&] { called_back = true; });
    if (fail) throw std::runtime_error("in backward");
  });
  const Tensor loss = y * y;
  EXPECT_THROW(loss.backward({}, true), std::runtime_error);
  EXPECT_FALSE(called_back);
  EXPECT_FALSE(Engine::running());
  EXPECT_TRUE(GradMode::enabled());
  EXPECT_FALSE(x.grad().defined());
  fail = false;
  loss.backward();
  EXPECT_TRUE(called_back);
  EXPECT_EQ(x.grad().item(), 24.0);
}

TEST(Engine, BackwardItselfIsNotRecorded) {
  const Tensor x = leaf(3);
  bool recording = true, running = false;
  const Tensor y = probe({x}, 2, [&] {
    recording = GradMode::enabled();
    running = Engine::running();
  });
  EXPECT_FALSE(Engine::running());
  y.backward();
  EXPECT_FALSE(recording);
  EXPECT_TRUE(running);
  EXPECT_TRUE(GradMode::enabled());
  EXPECT_FALSE(x.grad().requires_grad());
}

TEST(Engine, CallbacksRunInOrderWhenEveryLeafIsReached) {
  Log log;
  const Tensor x = leaf(1), z = leaf(1);
  z.register_post_accumulate_grad_hook([&](const Tensor&) { log.push_back("z"); });
  x.register_post_accumulate_grad_hook([&](const Tensor&) {
    Engine::queue_callback([&] {
      log.push_back("first");
      Engine::queue_callback([&] { log.push_back("third"); });
    });
    Engine::queue_callback([&] { log.push_back("second"); });
    log.push_back("x");
  });
  const Tensor early = z * 2.0;
  (early + x).backward();
  EXPECT_EQ(log, Log({"x", "z", "first", "second", "third"}));
}

TEST(Engine, PassesNest) {
  Log log;
  const Tensor x = leaf(1), inner_leaf = leaf(5);
  const Tensor y = probe({x}, 1, [&] {
    Engine::queue_callback([&] { log.push_back("outer"); });
    const EnableGradGuard recording;
    const Tensor inner = probe({inner_leaf}, 3, [&] { Engine::queue_callback([&] { log.push_back("inner"); }); });
    inner.backward();
    log.push_back("inner is done");
  });
  y.backward();
  EXPECT_EQ(log, Log({"inner", "inner is done", "outer"}));
  EXPECT_EQ(inner_leaf.grad().item(), 3.0);
  EXPECT_EQ(x.grad().item(), 1.0);
}

// The inner loss shares the outer one's trunk: each pass has counts and pending gradients of its own.
TEST(Engine, NestedPassesMayShareAGraph) {
  const Tensor x = leaf(3), w = leaf(1);
  const Tensor trunk = x * 5.0;
  const Tensor auxiliary = trunk * 4.0 + trunk * w;
  int hooks = 0;
  w.register_post_accumulate_grad_hook([&](const Tensor&) {
    if (++hooks == 1) auxiliary.backward({}, true);
  });
  (trunk * w + trunk * 2.0).backward({}, true);
  EXPECT_EQ(x.grad().item(), 5 * (1 + 2) + 5 * (4 + 1));
  EXPECT_EQ(w.grad().item(), 15 + 15);
  EXPECT_EQ(hooks, 2);
  EXPECT_FALSE(Engine::running());
}

TEST(Engine, ANestedPassMayNotFreeTheGraphAroundIt) {
  const Tensor x = leaf(3), w = leaf(1), last = leaf(1);
  const Tensor trunk = x * w;
  const Tensor auxiliary = trunk * 4.0;
  std::string message;
  last.register_post_accumulate_grad_hook([&](const Tensor&) { message = error_of([&] { auxiliary.backward(); }); });
  (trunk * last).backward();
  EXPECT_NE(message.find("a backward() inside another would free the graph of Mul"), std::string::npos) << message;
  EXPECT_EQ(x.grad().item(), 1.0);
}

TEST(Engine, ThreadsRunTheirOwnPasses) {
  std::vector<std::thread> threads;
  std::vector<double> grads(4, 0);
  for (std::size_t t = 0; t < grads.size(); ++t)
    threads.emplace_back([&grads, t] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        const Tensor x = leaf(static_cast<double>(t));
        Tensor y = x;
        for (int i = 0; i < 20; ++i) y = y + x;
        (y * y).backward();
        grads[t] = x.grad().item();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < grads.size(); ++t) EXPECT_EQ(grads[t], 2.0 * 21 * 21 * static_cast<double>(t));
}

/// Bytes of the thread-local variables of all that is loaded, which lie on a thread's stack: megabytes on the emulated
/// device, where every kernel's shared memory is one.
std::size_t thread_local_bytes() {
  std::size_t bytes = 0;
  const auto add = [](dl_phdr_info* object, std::size_t, void* total) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      if (segment.p_type == PT_TLS) *static_cast<std::size_t*>(total) += segment.p_memsz + segment.p_align;
    }
    return 0;
  };
  dl_iterate_phdr(add, &bytes);
  return bytes;
}

/// Runs `body` on a thread with a stack of 256 KiB beside its thread-local variables: recursion over a long graph would
/// overflow it.
void on_small_stack(void (*body)()) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{256} * 1024 + thread_local_bytes()), 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*reinterpret_cast<void (**)()>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &body), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

constexpr int kDeep = 200000;

TEST(DeepGraphs, BackwardAndDestructionNeedNoStack) {
  on_small_stack([] {
    const Tensor x = leaf(1);
    Tensor y = x;
    for (int i = 0; i < kDeep; ++i) y = y + 1.0;
    y.backward();
    EXPECT_EQ(x.grad().item(), 1.0);
    EXPECT_EQ(y.item(), kDeep + 1.0);
  });
}

TEST(DeepGraphs, DestructionWithoutBackwardNeedsNoStack) {
  on_small_stack([] {
    const Tensor x = leaf(1);
    Tensor y = x;
    for (int i = 0; i < kDeep; ++i) y = y * y;  // saves tensors that own the chain, too
    EXPECT_EQ(y.item(), 1.0);
  });
}

TEST(DeepGraphs, SavedTensorsThatOwnEachOtherAreFreedAfterBackward) {
  on_small_stack([] {
    const Tensor x = leaf(1), one = leaf(1);
    Tensor y = x;
    for (int i = 0; i < kDeep; ++i) y = y * one;
    y.backward();
    EXPECT_EQ(one.grad().item(), static_cast<double>(kDeep));
  });
}

// Gradients of parts are added where they belong: the sum of many parts, also beside other uses, of tensors that hooks
// and retained graphs see.
TEST(Engine, PartsOfATensorAddTheirGradients) {
  const Tensor x = arange(0, 24).to(kFloat32).view({6, 4});
  x.set_requires_grad(true);
  const Tensor y = x * 2.0;
  Tensor seen;
  y.register_hook([&](const Tensor& grad) {
    seen = grad.clone();
    return Tensor();
  });
  Tensor loss = (y * y).sum();
  std::vector<double> expected(24);
  for (std::int64_t i = 0; i < 24; ++i) expected[static_cast<std::size_t>(i)] = 4.0 * static_cast<double>(i);
  for (std::int64_t row = 0; row < 6; ++row) {
    loss = loss + (y.select(0, row) * static_cast<double>(row + 1)).sum() + y.slice(1, 1, 4, 2).select(1, 0).sum();
    for (std::int64_t j = 0; j < 4; ++j)
      expected[static_cast<std::size_t>(4 * row + j)] += static_cast<double>(row + 1);
  }
  for (std::int64_t row = 0; row < 6; ++row) expected[static_cast<std::size_t>(4 * row + 1)] += 6.0;
  for (int pass = 1; pass <= 2; ++pass) {
    loss.backward({}, true);
    EXPECT_EQ(seen.to_vector<double>(), expected);
    std::vector<double> twice = expected;
    for (double& value : twice) value *= 2.0 * pass;
    EXPECT_EQ(x.grad().to_vector<double>(), twice);
  }
}

struct OfSoMany final : Node {
  explicit OfSoMany(std::size_t count) : count(count) {}
  const char* name() const override { return "OfSoMany"; }
  TensorList apply(TensorList grads) override {
    TensorList result;
    result.resize(count);
    for (Tensor& each : result) each = grads[0];
    return result;
  }
  const std::size_t count;
};

// Whoever forgets to return a gradient must not train without it.
TEST(Engine, ANodeReturnsAGradientForEachInput) {
  for (const std::size_t count : {0, 1, 3}) {
    const Tensor a = leaf(1), b = leaf(2), out = full({}, 3.0, {.dtype = kFloat64});
    const IntrusivePtr<Node> node(new OfSoMany(count));
    const Tensor* const inputs[] = {&a, &b};
    const Tensor* const outputs[] = {&out};
    NodeBuilder::set_inputs(*node, inputs);
    ASSERT_TRUE(NodeBuilder::set_outputs(node, outputs));
    EXPECT_NE(
        error_of([&] { out.backward(); }).find(fmt::format("OfSoMany returned {} gradient(s) for 2 input(s)", count)),
        std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
