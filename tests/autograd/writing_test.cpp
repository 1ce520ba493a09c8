// What a write in place means for gradients that are kept, for leaves that are views, and for time.

#include <gtest/gtest.h>

#include <chrono>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;

Tensor two_ones() {
  const Tensor x = ones({2}, {.dtype = kFloat64});
  x.set_requires_grad(true);
  return x;
}
std::vector<double> gradient(const Tensor& x) {
  return x.grad().defined() ? x.grad().to_vector<double>() : std::vector<double>{};
}

TEST(Writing, AKeptGradientIsThatOfTheValuesAfterTheLastWrite) {
  using Values = std::vector<double>;
  const Tensor w = two_ones();
  const auto kept = [&](auto&& write) {
    const Tensor x = w * 1.0;
    x.retain_grad();
    write(x);
    (x * 5.0).sum().backward();
    return gradient(x);
  };
  EXPECT_EQ(kept([](const Tensor&) {}), (Values{5, 5}));
  EXPECT_EQ(kept([](const Tensor& x) { x.mul_(3.0); }), (Values{5, 5}));
  EXPECT_EQ(kept([](const Tensor& x) { x[0].mul_(3.0); }), (Values{5, 5}));
  EXPECT_EQ(kept([&](const Tensor& x) { x[0] = w[1]; }), (Values{5, 5}));
  EXPECT_EQ(kept([](const Tensor& x) { x.mul_(3.0).mul_(2.0); }), (Values{5, 5}));
  for (const bool base : {true, false}) {
    const Tensor x = w * 1.0, v = x[0];
    v.retain_grad();
    (base ? x : v).mul_(3.0);
    (v * 5.0).backward();
    EXPECT_EQ(gradient(v), (Values{5})) << base;
  }
}

TEST(Writing, ALeafThatShowsWrittenElementsIsAnError) {
  const Tensor w = two_ones(), x = zeros({2}, {.dtype = kFloat64}), v = x[0];
  v.set_requires_grad(true);
  {
    const NoGradGuard guard;
    x.fill_(2.0);  // an optimizer may
  }
  (v * v).backward();
  EXPECT_EQ(gradient(v), (std::vector<double>{4}));
  x.copy_(w * 3.0);
  EXPECT_THROW((v * v).backward(), Error);
}

TEST(Writing, AViewMadeWithoutRecordingIsNotWrittenWhileRecording) {
  const auto unrecorded = [](const Tensor& x) {
    const NoGradGuard guard;
    return x[0];
  };
  const Tensor w = two_ones(), x = w * 2.0;
  for (const Tensor& view : {unrecorded(x), unrecorded(x.view({2, 1})), unrecorded(w)}) {
    EXPECT_NE(error_of([&] { view.mul_(2.0); }).find("made while nothing was recorded"), std::string::npos);
    EXPECT_THROW(view.mul_(w.sum()), Error);
    EXPECT_THROW(view.view({1}).fill_(2.0), Error);
    const NoGradGuard guard;
    view.mul_(2.0);
  }
  // Of what has no gradients it is a view like others.
  const Tensor plain = ones({2}, {.dtype = kFloat64});
  unrecorded(plain).mul_(2.0);
  EXPECT_EQ(plain.to_vector<double>(), (std::vector<double>{2, 1}));
  unrecorded(x).clone().mul_(2.0);
  x.sum().backward();
  EXPECT_EQ(gradient(w), (std::vector<double>{2, 2}));
}

TEST(Writing, ALeafThatIsAViewIsNotWrittenThroughItsOwnViews) {
  const Tensor base = ones({4}, {.dtype = kFloat64}), leaf = base.view({2, 2});
  leaf.set_requires_grad(true);
  EXPECT_NE(error_of([&] { leaf[0].mul_(2.0); }).find("elements of a leaf that requires gradients"), std::string::npos);
  EXPECT_THROW(leaf.view({4}).fill_(0.0), Error);
  {
    const NoGradGuard guard;
    leaf[0].mul_(2.0);
  }
  leaf.sum().backward();
  EXPECT_EQ(gradient(leaf), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(leaf.sum().item<double>(), 6.0);
}

TEST(Writing, WhatRepeatsItsElementsIsNotWritten) {
  const Tensor x = zeros({1, 3}).expand({2, 3}), index = zeros({2}, {.dtype = kInt64}), rows = ones({2, 3});
  const Tensor places = zeros({2, 3}, {.dtype = kInt64});
  EXPECT_THROW(x.index_add_(0, index, rows), Error);
  EXPECT_THROW(x.index_copy_(0, index, rows), Error);
  EXPECT_THROW(x.index_fill_(0, index, 1.0), Error);
  EXPECT_THROW(x.scatter_(0, places, rows), Error);
  EXPECT_THROW(x.scatter_add_(0, places, rows), Error);
  EXPECT_THROW(x.exp_(), Error);
  EXPECT_THROW(x.clamp_(1.0, 2.0), Error);
  EXPECT_THROW(x.uniform_(), Error);
  EXPECT_THROW(x.normal_(), Error);
  EXPECT_EQ(x.sum().item<float>(), 0.0f);
}

TEST(Writing, ACallThatThrowsHasWrittenNothing) {
  const Tensor w = two_ones(), x = ones({2}, {.dtype = kFloat64}), y = w * x;  // keeps x
  EXPECT_THROW(x.index_copy_(0, full({1}, 7, {.dtype = kInt64}), ones({1}, {.dtype = kFloat64})), Error);
  EXPECT_THROW(x.scatter_(0, full({1}, 7, {.dtype = kInt64}), ones({1}, {.dtype = kFloat64})), Error);
  y.sum().backward();
  EXPECT_EQ(gradient(w), (std::vector<double>{1, 1}));
}

// Each write goes through what came since the last one, not through the whole history: that would take seconds.
TEST(Writing, ManyWritesTakeTimeInProportion) {
  constexpr std::int64_t kSteps = 6000;
  const Tensor w = two_ones(), out = zeros({kSteps, 2}, {.dtype = kFloat64});
  const Tensor probe = out[0] * w;  // keeps out for its gradient
  const auto start = std::chrono::steady_clock::now();
  Tensor h = w;
  for (std::int64_t t = 0; t < kSteps; ++t) {
    h = (h * w).tanh();
    out[t] = h;
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 3.0);
  EXPECT_THROW(probe.sum().backward(), Error);  // out was changed since
  out.sum().backward();
  EXPECT_GT(gradient(w)[0], 0.0);
}

TEST(Writing, WhatWasWrittenOverGetsZeros) {
  using Values = std::vector<double>;
  const auto slopes = [](const auto& write) {
    const Tensor x = two_ones(), y = x * 2.0;
    write(y);
    y.sum().backward();
    return gradient(x);
  };
  EXPECT_EQ(slopes([](const Tensor& y) { y.zero_(); }), (Values{0, 0}));
  EXPECT_EQ(slopes([](const Tensor& y) { y.fill_(3); }), (Values{0, 0}));
  EXPECT_EQ(slopes([](const Tensor& y) { y.copy_(two_ones()); }), (Values{0, 0}));
  EXPECT_EQ(slopes([](const Tensor& y) { y.copy_(ones({2})); }), (Values{0, 0}));
  EXPECT_EQ(slopes([](const Tensor& y) { y[0] = 5.0; }), (Values{0, 2}));
  EXPECT_EQ(slopes([](const Tensor& y) { y.masked_fill_(tensor<bool>({true, false}), 0.0); }), (Values{0, 2}));
  const Tensor x = two_ones(), y = x * 2.0;
  y.zero_();
  const Tensor g = grad({y.sum()}, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(g.to_vector<double>(), (Values{0, 0}));
}

}  // namespace
}  // namespace lockstep
