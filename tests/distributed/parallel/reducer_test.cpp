#include "lockstep/distributed/parallel/reduction/reducer.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "tests/distributed/parallel/recording_process_group.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_close;
using lockstep::testing::make_leaf;
using testing::RecordingProcessGroup;

constexpr std::size_t kFourFloats = 16;

/// Three parameters of four elements, each in a bucket of its own: c, then b, then a.
struct Fixture {
  Tensor a = make_leaf({4}, 1, kFloat32);
  Tensor b = make_leaf({4}, 2, kFloat32);
  Tensor c = make_leaf({4}, 3, kFloat32);
  std::shared_ptr<RecordingProcessGroup> group = std::make_shared<RecordingProcessGroup>(2);

  std::unique_ptr<Reducer> make() {
    return std::make_unique<Reducer>(
        std::vector<nn::NamedTensor>{{"a", a}, {"b", b}, {"c", c}}, group,
        TrainingStepOptions{.first_bucket_bytes = kFourFloats, .bucket_bytes = kFourFloats});
  }
  /// Gradients of a, b, c arrive in the order c, b, a.
  void backward_in_bucket_order() { mul(a, mul(b, c.exp())).sum().backward(); }
};

TEST(Reducer, LaunchesEachBucketWhileBackwardRuns) {
  Fixture f;
  const auto reducer = f.make();
  std::vector<bool> a_had_gradient;
  f.group->on_launch = [&] { a_had_gradient.push_back(f.a.grad().defined()); };
  // d(sum)/dc needs one op more than a's, so make a's the last: a is used first.
  const Tensor early = f.a.exp().exp().exp();
  add(early, mul(f.b, f.c)).sum().backward();
  ASSERT_EQ(f.group->launched.size(), 3u);
  EXPECT_FALSE(a_had_gradient.front()) << "the first bucket must leave before the last gradient is there";
}

TEST(Reducer, LaunchesInBucketOrderWhateverTheOrderOfGradients) {
  Fixture f;
  const auto reducer = f.make();
  const Tensor early = f.c.exp().exp().exp();  // c's gradient, bucket 0, comes last
  add(early, mul(f.a, f.b)).sum().backward();
  ASSERT_EQ(f.group->launched.size(), 3u);
  expect_close(f.group->launched[0], f.c.grad());
  expect_close(f.group->launched[1], f.b.grad());
  // The last one also says of each parameter whether it was used.
  expect_close(rows(f.group->launched[2], 0, 4), f.a.grad());
  expect_close(rows(f.group->launched[2], 4, 3), ones({3}));
}

TEST(Reducer, GradientsAreViewsOfTheBuckets) {
  Fixture f;
  const auto reducer = f.make();
  f.backward_in_bucket_order();
  ASSERT_EQ(f.group->launched.size(), 3u);
  EXPECT_TRUE(f.c.grad().storage() == f.group->launched[0].storage());
  const void* memory = f.c.grad().raw_data();
  fill_values(f.c.grad(), 0.0);
  f.backward_in_bucket_order();
  EXPECT_EQ(f.c.grad().raw_data(), memory);
}

// CUDA kernels then load 16 bytes of each at once.
TEST(Reducer, EachGradientBeginsAtAMultipleOf16Bytes) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    const Tensor a = make_leaf({3}, 1, dtype), b = make_leaf({5}, 2, dtype), c = make_leaf({1}, 3, dtype);
    const auto group = std::make_shared<RecordingProcessGroup>(2);
    Reducer reducer({{"a", a}, {"b", b}, {"c", c}}, group, TrainingStepOptions{});
    add(mul(a, a).sum(), add(mul(b, b).sum(), mul(c, c).sum())).backward();
    ASSERT_EQ(group->launched.size(), 1u);
    const Tensor& sent = group->launched[0];
    double sum = 3.0;  // each parameter was used
    for (const Tensor& parameter : {a, b, c}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parameter.grad().raw_data()) % 16, 0u) << name(dtype);
      EXPECT_TRUE(parameter.grad().storage() == sent.storage());
      expect_close(parameter.grad(), add(parameter.detach(), parameter.detach()));
      sum += parameter.grad().sum().item<double>();
    }
    EXPECT_NEAR(sent.sum().item<double>(), sum, 1e-5) << "between gradients are zeros";
  }
}

TEST(Reducer, AccumulatesWithoutCommunicationWhileSwitchedOff) {
  Fixture f;
  const auto reducer = f.make();
  reducer->set_synchronize(false);
  f.backward_in_bucket_order();
  EXPECT_TRUE(f.group->launched.empty());
  const Tensor once = f.a.grad().clone();
  reducer->set_synchronize(true);
  f.backward_in_bucket_order();
  EXPECT_EQ(f.group->launched.size(), 3u);
  expect_close(f.a.grad(), add(once, once));
}

TEST(Reducer, UnusedParametersCountAsZeroAndAreNamed) {
  Fixture f;
  const auto reducer = f.make();
  mul(f.a, f.c).sum().backward();
  EXPECT_EQ(f.group->launched.size(), 3u);
  EXPECT_EQ(reducer->unused_parameters(), std::vector<std::string>{"b"});
  expect_close(f.group->launched[1], zeros({4}));
  expect_close(rows(f.group->launched[2], 4, 3), tensor(std::vector<float>{1, 0, 1}));
  f.backward_in_bucket_order();
  EXPECT_TRUE(reducer->unused_parameters().empty());
  EXPECT_TRUE(reducer->unused_everywhere().empty());
}

// As in one process: without a gradient on any rank the optimizer leaves a parameter alone.
TEST(Reducer, WhatNoRankUsedHasNoGradient) {
  Fixture f;
  const auto reducer = f.make();
  mul(f.a, f.c).sum().backward();
  EXPECT_EQ(reducer->unused_everywhere(), std::vector<std::string>{"b"});
  EXPECT_FALSE(f.b.grad().defined());
  f.backward_in_bucket_order();
  const Tensor before = f.b.grad().clone();
  mul(f.a, f.c).sum().backward();  // on top of an average that is there already: it stays
  EXPECT_EQ(reducer->unused_everywhere(), std::vector<std::string>{"b"});
  expect_close(f.b.grad(), before);
  reducer->drop_unused_gradients();
  EXPECT_FALSE(f.b.grad().defined());
  EXPECT_TRUE(f.a.grad().defined());
}

TEST(Reducer, AStaticGraphDoesNotWaitForWhatItDoesNotUse) {
  for (const bool static_graph : {false, true}) {
    Fixture f;
    Reducer reducer({{"a", f.a}, {"b", f.b}, {"c", f.c}}, f.group,
                    {.static_graph = static_graph, .first_bucket_bytes = kFourFloats, .bucket_bytes = kFourFloats});
    const auto backward_without_c = [&] {  // the first bucket is c's; a's gradient comes last
      const Tensor early = f.a.exp().exp().exp();
      add(early, f.b).sum().backward();
    };
    backward_without_c();
    std::vector<bool> a_had_gradient;
    f.group->on_launch = [&] { a_had_gradient.push_back(f.a.grad().defined()); };
    f.a.set_grad({});
    f.b.set_grad({});
    backward_without_c();
    ASSERT_EQ(a_had_gradient.size(), 3u);
    EXPECT_EQ(a_had_gradient.front(), !static_graph);
    EXPECT_EQ(reducer.unused_parameters(), std::vector<std::string>{"c"});
    if (static_graph) {
      const std::string error = error_of([&] { f.backward_in_bucket_order(); });
      EXPECT_NE(error.find("'c' got a gradient now and none in the first step"), std::string::npos) << error;
    } else {
      f.backward_in_bucket_order();
      EXPECT_TRUE(reducer.unused_parameters().empty());
    }
  }
}

TEST(Reducer, AStaticGraphIsLearnedFromAPassWithABackward) {
  Fixture f;
  Reducer reducer({{"a", f.a}, {"b", f.b}, {"c", f.c}}, f.group, {.static_graph = true});
  reducer.reduce_now();  // no samples here in the first step
  f.backward_in_bucket_order();
  EXPECT_TRUE(reducer.unused_parameters().empty());
}

TEST(Reducer, TakesPartWithoutABackwardOfItsOwn) {
  Fixture f;
  const auto reducer = f.make();
  reducer->reduce_now();
  EXPECT_EQ(f.group->launched.size(), 3u);
  expect_close(rows(f.group->launched[2], 0, 4), zeros({4}));
}

TEST(Reducer, RemovesItsHooks) {
  Fixture f;
  f.make().reset();
  f.backward_in_bucket_order();
  EXPECT_TRUE(f.group->launched.empty());
}

// An exception in backward() ends a pass: the next one reduces all that it has, and nothing of the former.
TEST(Reducer, APassAfterOneThatWasBrokenOffBeginsAnew) {
  Fixture f;
  const auto reducer = f.make();
  f.group->on_launch = [] { throw Error("the link is down"); };
  EXPECT_EQ(error_of([&] { f.backward_in_bucket_order(); }), "the link is down");
  f.group->on_launch = [] {};
  reducer->clear_gradients();
  f.backward_in_bucket_order();
  EXPECT_EQ(reducer->passes(), 1u);
}

TEST(Reducer, TraceOrdersTheEventsOfAPass) {
  Fixture f;
  const auto reducer = f.make();
  const Tensor early = f.a.exp().exp().exp();  // a's gradient, the last bucket, comes last
  add(early, mul(f.b, f.c)).sum().backward();
  const ReducerTrace& trace = reducer->trace();
  EXPECT_LE(trace.first_gradient_ns, trace.launched_ns[0]);
  EXPECT_LE(trace.launched_ns[0], trace.last_gradient_ns);
  EXPECT_LE(trace.last_gradient_ns, trace.finished_ns);
}

TEST(Reducer, RefusesAParameterWithoutGradients) {
  const Tensor frozen = zeros({2});
  EXPECT_NE(error_of([&] {
              Reducer reducer({{"frozen", frozen}}, std::make_shared<RecordingProcessGroup>(2));
            }).find("'frozen'"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
