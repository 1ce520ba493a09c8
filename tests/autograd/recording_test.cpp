// What is recorded, what is not, and what may be changed in place.

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/probe_node.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

Tensor leaf(double value) {
  const Tensor x = full({2}, value, {.dtype = kFloat64});
  x.set_requires_grad(true);
  return x;
}
double grad_of(const Tensor& x) {
  return x.grad().to_vector<double>()[0];
}
void run(const Tensor& y) {
  y.backward(ones_like(y));
}

TEST(Recording, RequiresGradSpreadsFromLeavesToResults) {
  const Tensor x = leaf(2), plain = make_input({2});
  EXPECT_TRUE(x.requires_grad());
  EXPECT_TRUE(x.is_leaf());
  const Tensor y = x * plain;
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(y.is_leaf());
  const Tensor z = plain * 2.0;
  EXPECT_FALSE(z.requires_grad());
  EXPECT_TRUE(z.is_leaf());
  EXPECT_FALSE(Tensor().requires_grad());
  x.set_requires_grad(false);
  EXPECT_FALSE((x * 2.0).requires_grad());
}

TEST(Recording, OnlyFloatingPointLeavesCanRequireGradients) {
  EXPECT_NE(error_of([] { zeros({2}, {.dtype = kInt64}).set_requires_grad(true); }).find("this one is int64"),
            std::string::npos);
  EXPECT_NE(error_of([] { (leaf(1) * 2.0).set_requires_grad(false); }).find("only leaves can be switched"),
            std::string::npos);
  zeros({2}, {.dtype = kInt64}).set_requires_grad(false);
  EXPECT_FALSE(eq(leaf(1), 1.0).requires_grad());
  EXPECT_FALSE(leaf(1).to(kInt64).requires_grad());
}

// Nothing would own its node.
TEST(Recording, AResultOfAnIntegerTypeHasNoNode) {
  const Tensor x = leaf(3), labels = zeros({2}, {.dtype = kInt64}), values = zeros({2}, {.dtype = kFloat64});
  const Tensor *inputs[] = {&x}, *whole[] = {&labels, &labels}, *mixed[] = {&labels, &values};
  EXPECT_EQ(record<ProbeBackward>(labels, {&x}), nullptr);
  EXPECT_EQ(record_in_place<ProbeBackward>(labels, {&labels, &x}), nullptr);
  EXPECT_EQ(record_many<ProbeBackward>(whole, inputs), nullptr);
  EXPECT_FALSE(labels.requires_grad());
  const Node* const node = record_many<ProbeBackward>(mixed, inputs);
  EXPECT_EQ(gradient_edge(values).node.get(), node);
  EXPECT_FALSE(labels.requires_grad());
}

TEST(Recording, DetachCutsTheGraphAndSharesTheMemory) {
  const Tensor x = leaf(3);
  const Tensor y = x * 2.0;
  const Tensor d = y.detach();
  EXPECT_FALSE(d.requires_grad());
  EXPECT_EQ(d.storage(), y.storage());
  run(x * d);
  EXPECT_EQ(grad_of(x), 6.0);
}

TEST(Recording, GuardsNestAndBelongToTheirThread) {
  const Tensor x = leaf(3);
  {
    const NoGradGuard off;
    EXPECT_FALSE(GradMode::enabled());
    EXPECT_FALSE((x * 2.0).requires_grad());
    {
      const EnableGradGuard on;
      EXPECT_TRUE((x * 2.0).requires_grad());
      const GradModeGuard off_again(false);
      EXPECT_FALSE((x * 2.0).requires_grad());
    }
    EXPECT_FALSE(GradMode::enabled());
    bool other = false;
    std::thread([&] { other = GradMode::enabled(); }).join();
    EXPECT_TRUE(other);
  }
  EXPECT_TRUE((x * 2.0).requires_grad());
}

TEST(Recording, UnwantedGradientsAreNotComputed) {
  const Tensor x = leaf(3), fixed = make_input({2});
  const Tensor y = probe({x, fixed}, 2, {});
  run(y);
  EXPECT_EQ(grad_of(x), 2.0);
  EXPECT_FALSE(fixed.grad().defined());
}

TEST(SavedTensors, ChangedInPlaceTheyAreAnError) {
  const Tensor x = leaf(3), w = leaf(5);
  const Tensor h = x * 2.0;
  const Tensor y = h * w;
  h.add_(1.0);
  const std::string message = error_of([&] { run(y); });
  EXPECT_NE(message.find("[MulBackward] a tensor of shape [2] that backward needs was changed in place"),
            std::string::npos)
      << message;
}

TEST(SavedTensors, AChangeThroughAnotherHandleOrViewIsSeenToo) {
  for (const bool through_view : {false, true}) {
    const Tensor x = leaf(3), data = make_input({2});
    const Tensor y = x * data;
    (through_view ? rows(data, 0, 1) : data.detach()).mul_(2.0);
    EXPECT_NE(error_of([&] { run(y); }).find("was changed in place"), std::string::npos);
  }
}

TEST(SavedTensors, ChangesThatBackwardDoesNotMeetAreAllowed) {
  const Tensor x = leaf(3), data = full({2}, 2, {.dtype = kFloat64});
  const Tensor sum = x + data;  // saves nothing
  data.mul_(100.0);
  run(sum);
  EXPECT_EQ(grad_of(x), 1.0);
  const Tensor product = x * data;
  run(product);
  data.mul_(2.0);
  EXPECT_EQ(grad_of(x), 201.0);
}

TEST(SavedTensors, AResultThatBackwardNeedsIsGuardedToo) {
  const Tensor x = leaf(3);
  const Tensor y = x.exp();
  {
    const NoGradGuard off;
    y.mul_(2.0);
  }
  EXPECT_NE(error_of([&] { run(y); }).find("was changed in place"), std::string::npos);
}

TEST(SavedTensors, WhatSavedNothingRunsTwice) {
  const Tensor x = leaf(3), w = leaf(5);
  const Tensor sum = -(x + w) / 2.0;
  run(sum);
  run(sum);
  EXPECT_EQ(grad_of(x), -1.0);
  const Tensor trunk = x * 2.0;
  trunk[0].backward(ones({}, {.dtype = kFloat64}));  // one part after the other, over a trunk that both share
  trunk[1].backward(ones({}, {.dtype = kFloat64}));
  EXPECT_EQ(grad_of(x), 1.0);
  const Tensor product = sum * w;
  run(product);
  EXPECT_NE(error_of([&] { run(product); }).find("was freed by an earlier backward()"), std::string::npos);
}

TEST(InPlace, IsRecordedLikeAnyOperation) {
  const Tensor x = leaf(3), w = leaf(5);
  const Tensor y = x * 2.0;
  y.add_(w, 3.0);
  y.mul_(10.0);
  y.add_(x);
  EXPECT_EQ(y.to_vector<double>()[0], (6 + 15) * 10 + 3);
  run(y);
  EXPECT_EQ(grad_of(x), 21.0);
  EXPECT_EQ(grad_of(w), 30.0);
}

TEST(InPlace, PlainTensorsStartToRequireGradients) {
  const Tensor w = leaf(5);
  const Tensor buffer = zeros({2}, {.dtype = kFloat64});
  buffer.add_(w, 2.0);
  EXPECT_TRUE(buffer.requires_grad());
  run(buffer * 3.0);
  EXPECT_EQ(grad_of(w), 6.0);
}

// The tensor that is changed was saved by its own new history: they would own each other.
TEST(InPlace, ASavedTensorThatIsChangedDoesNotLeak) {
  const Tensor x = leaf(3);
  for (const bool plain : {false, true}) {
    const Tensor a = plain ? full({2}, 2, {.dtype = kFloat64}) : x * 2.0;
    {
      const Tensor y = a * x;
      a.add_(y);
      a.add_(1.0);
    }
    EXPECT_EQ(a.impl()->use_count(), 1u);
    EXPECT_NE(error_of([&] { run(a); }).find("was changed in place after it was saved"), std::string::npos);
  }
  EXPECT_EQ(x.impl()->use_count(), 1u);
}

TEST(InPlace, LeavesThatRequireGradientsAreChangedOnlyWithoutRecording) {
  const Tensor x = leaf(3);
  const std::string message = error_of([&] { x.add_(1.0); });
  EXPECT_EQ(message,
            "[add_] a leaf that requires gradients cannot be changed in place while recording; use a NoGradGuard");
  EXPECT_EQ(x.to_vector<double>()[0], 3.0);
  const NoGradGuard off;
  x.add_(1.0);
  EXPECT_EQ(x.to_vector<double>()[0], 4.0);
  EXPECT_TRUE(x.requires_grad());
  EXPECT_TRUE(x.is_leaf());
}

TEST(InPlace, AWriteIsPartOfTheHistoryOfViewsAndOfWhatTheyShow) {
  const Tensor x = leaf(3);
  const Tensor y = x * 2.0, view = y.view({2, 1}), part = y[1];
  y.mul_(x);  // x * 2 x, of which the views were made before
  view[0].mul_(5.0);
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{90, 18}));
  run(view.view({2}) + y + part);
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2 * 5 * 4 * 3, 4 * 4 * 3}));
  const Tensor buffer = zeros({3, 2}, {.dtype = kFloat64}), last = buffer[2];
  EXPECT_FALSE(last.requires_grad());
  for (std::int64_t t = 0; t < 3; ++t) buffer[t] = x * static_cast<double>(t);
  EXPECT_TRUE(last.requires_grad());
  EXPECT_FALSE(last.is_leaf());
  x.set_grad({});
  run(last);
  EXPECT_EQ(grad_of(x), 2.0);
  buffer[1].zero_();
  x.set_grad({});
  run(buffer);
  EXPECT_EQ(grad_of(x), 2.0);
}

TEST(InPlace, WhatSharesMemoryWithoutAHistoryIsNotWrittenWhileRecording) {
  const Tensor x = leaf(3);
  const Tensor y = x * 2.0, cut = y.detach();
  for (const Tensor& target : {y, y[0], y.view({2, 1})}) {
    const std::string message = error_of([&] { target.mul_(x[0]); });
    EXPECT_NE(message.find("[mul_]"), std::string::npos) << message;
    EXPECT_NE(message.find("shares its memory"), std::string::npos) << message;
  }
  EXPECT_NE(error_of([&] { x[0].mul_(2.0); }).find("[mul_] a leaf that requires gradients"), std::string::npos);
  const Tensor saved = x.exp();
  EXPECT_NE(error_of([&] { saved[0] = 1; }).find("saved for backward"), std::string::npos);
  run(y);
  EXPECT_EQ(grad_of(x), 2.0);
}

// `row * row` keeps the row, which shows an element of y, whose history would lead to the product and so to the row.
TEST(InPlace, NoHistoryOwnsItself) {
  double memory[] = {1, 2};
  bool freed = false;
  {
    const Tensor x = leaf(3), y = from_blob(memory, {2}, {.dtype = kFloat64}, [&] { freed = true; });
    y.mul_(x);
    const Tensor row = y[0], product = row * row;
    y[0] = product + y[1] * y[1];
    EXPECT_EQ(memory[0], 3 * 3 + 6 * 6);
    EXPECT_NE(error_of([&] { run(y); }).find("changed in place after it was saved"), std::string::npos);
  }
  EXPECT_TRUE(freed);
}

TEST(InPlace, EveryChangeRaisesTheVersion) {
  const Tensor x = zeros({2});
  const std::uint32_t before = x.storage()->version();
  x.add_(1.0);
  x.fill_(2.0);
  x.zero_();
  x.copy_(ones({2}));
  x.mul_(x);
  EXPECT_EQ(x.storage()->version(), before + 5);
}

}  // namespace
}  // namespace lockstep
