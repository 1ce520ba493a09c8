// The forms that people type.

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;
using Values = std::vector<double>;

Values values(const Tensor& x) {
  return x.to_vector<double>();
}

TEST(Methods, StandBesideTheFunctions) {
  const Tensor x = tensor<double>({1, 2, 3, 4}).view({2, 2}), y = tensor<double>({4, 3, 2, 1}).view({2, 2});
  EXPECT_EQ(values(x.sum(0)), (Values{4, 6}));
  EXPECT_EQ(values(x.mean(0)), (Values{2, 3}));
  EXPECT_EQ(values(x.max(1)), (Values{2, 4}));
  EXPECT_EQ(x.argmax().item<int>(), 3);
  EXPECT_EQ(x.argmin().item<int>(), 0);
  EXPECT_EQ(values(y.argmax(1)), (Values{0, 0}));
  EXPECT_EQ(values(x.eq(y)), (Values{0, 0, 0, 0}));
  EXPECT_EQ(values(x.lt(2.5)), (Values{1, 1, 0, 0}));
  EXPECT_TRUE(x.gt(0).all().item<bool>());
  EXPECT_FALSE(x.ge(5).any().item<bool>());
  EXPECT_EQ(values(x.mm(y)), (Values{8, 5, 20, 13}));
  EXPECT_EQ(values(x.sub(y)), (Values{-3, -1, 1, 3}));
  EXPECT_EQ(values(x.add(y, 2)), (Values{9, 8, 7, 6}));
  EXPECT_EQ(values(x.div(2)), (Values{0.5, 1, 1.5, 2}));
  EXPECT_EQ(values(x.maximum(y)), (Values{4, 3, 3, 4}));
  EXPECT_EQ(values(x.clone().sub_(y).div_(2)), (Values{-1.5, -0.5, 0.5, 1.5}));
  EXPECT_EQ(values(x.neg().square()), (Values{1, 4, 9, 16}));
  EXPECT_EQ(x.split(1).size(), 2u);
  EXPECT_EQ(x.chunk(2, 1)[1].size(1), 1);
  EXPECT_EQ(values(x.cpu()), values(x));
  EXPECT_EQ(x.data_ptr<double>(), x.data<double>());
  EXPECT_NE(error_of([&] { x.mm(x.sum(0)); }).find("[mm] expected two matrices"), std::string::npos);
  EXPECT_TRUE(ones(3).requires_grad_().requires_grad());
}

TEST(Methods, ShapesPrintAndComeFromOneNumber) {
  std::ostringstream out;
  out << zeros({2, 3}).sizes() << zeros(4).sizes();
  EXPECT_EQ(out.str(), "[2, 3][4]");
}

TEST(Methods, ItemTakesEveryNumberType) {
  const Tensor x = full({1}, 7.0);
  EXPECT_EQ(x.item<int>(), 7);
  EXPECT_EQ(x.item<unsigned>(), 7u);
  EXPECT_EQ(x.item<long long>(), 7);
  EXPECT_EQ(x.item<std::size_t>(), 7u);
  EXPECT_EQ(x.item<long double>(), 7.0L);
  EXPECT_EQ(x.to_vector<std::int32_t>(), (std::vector<std::int32_t>{7}));
}

TEST(Methods, AnUndefinedTensorIsAnErrorNotACrash) {
  const Tensor u;
  const Tensor w = ones({2}).requires_grad_();
  const std::function<void()> uses[] = {
      [&] { u.shape(); },         [&] { w.grad().numel(); }, [&] { u.dtype(); },     [&] { u.dim(); },
      [&] { u.size(0); },         [&] { u.view({1}); },      [&] { u[0]; },          [&] { u.data<float>(); },
      [&] { u.flatten(); },       [&] { u.permute({0}); },   [&] { options_of(u); }, [&] { zeros_like(u); },
      [&] { u.is_contiguous(); }, [&] { u.raw_data(); },     [&] { u.sum(0); },      [&] { (u + 1.0).numel(); },
      [&] { u.storage(); },       [&] { u.strides(); },      [&] { u.backward(); },  [&] { u.norm(); }};
  for (std::size_t i = 0; i < std::size(uses); ++i)
    EXPECT_NE(error_of(uses[i]).find("undefined"), std::string::npos) << "use " << i;
  EXPECT_EQ(error_of([&] { u.set_requires_grad(true); }), "[set_requires_grad] the tensor is undefined");
  for (const Tensor& grad : {u, w})
    EXPECT_EQ(error_of([&] { u.set_grad(grad); }), "[set_grad] the tensor is undefined");
  EXPECT_EQ(error_of([&] { u.register_post_accumulate_grad_hook([](const Tensor&) {}); }),
            "[register_post_accumulate_grad_hook] the tensor is undefined");
  EXPECT_FALSE(u.requires_grad());
  EXPECT_TRUE(u.is_leaf());
}

TEST(InPlaceMethods, WhatAnExpressionGivesIsWrittenWhenItIsAssignedTo) {
  const Tensor x = zeros({2, 3});
  x[1] = tensor({1.f, 2.f, 3.f});
  x[0][2] = 5;
  x.slice(1, 0, 1) = 0.5;
  EXPECT_EQ(values(x), (Values{0.5, 0, 5, 0.5, 2, 3}));
  const Tensor mask = zeros({2}, {.dtype = kBool});
  mask[1] = true;
  EXPECT_EQ(values(mask), (Values{0, 1}));
  Tensor handle = x, other = handle;
  handle = zeros({1});  // a variable takes another tensor, as ever
  EXPECT_TRUE(other.is_same(x));
  EXPECT_EQ(handle.numel(), 1);

  const Tensor w = ones({3}).requires_grad_();
  EXPECT_NE(error_of([&] { w[0] = 1; }).find("[operator=] a leaf that requires gradients"), std::string::npos);
  EXPECT_NE(error_of([&] { x[0] = ones({4}); }).find("[copy_]"), std::string::npos);
}

TEST(InPlaceMethods, ClampHasTheGradientOfClampAndDrawsHaveNone) {
  const auto gradient = [](const std::function<void(const Tensor&)>& change) {
    const Tensor w = tensor({-1.f, 0.5f, 3.f}).requires_grad_();
    const Tensor y = w * 2;
    change(y);
    (y * 3).sum().backward();
    return w.grad().defined() ? values(w.grad()) : Values{};
  };
  EXPECT_EQ(gradient([](const Tensor& y) { y.clamp_(0, 2); }), (Values{0, 6, 0}));
  EXPECT_EQ(gradient([](const Tensor& y) { y.clamp_(0); }), (Values{0, 6, 6}));
  const Tensor x = tensor({-1.f, 0.5f, 3.f});
  EXPECT_EQ(values(x.clamp(0)), (Values{0, 0.5, 3}));
  EXPECT_EQ(values(x.clamp({}, 1)), (Values{-1, 0.5, 1}));
  EXPECT_EQ(values(x.clamp(tensor({0.f, 1.f, 2.f}))), (Values{0, 1, 3}));
  const std::function<void(const Tensor&)> draws[] = {[](const Tensor& y) { y.normal_(); },
                                                      [](const Tensor& y) { y.uniform_(); },
                                                      [](const Tensor& y) { y.random_(0, 5); },
                                                      [](const Tensor& y) { y.bernoulli_(0.5); },
                                                      [](const Tensor& y) { y.bernoulli_(ones({3})); },
                                                      [](const Tensor& y) { y.exponential_(); }};
  for (std::size_t i = 0; i < std::size(draws); ++i) EXPECT_EQ(gradient(draws[i]), (Values{0, 0, 0})) << "draw " << i;
  const Tensor w = tensor({-1.f, 0.5f}).requires_grad_();
  EXPECT_NE(error_of([&] { w.clamp_(0, 1); }).find("[clamp_] a leaf"), std::string::npos);
  const NoGradGuard values_only;
  w.clamp_(0, 1);
  EXPECT_EQ(values(w), (Values{0, 0.5}));
}

TEST(Norm, IsTheRootOfTheSumOfSquares) {
  const Tensor x = tensor<double>({3, 4, 0, 0}).view({2, 2});
  x.set_requires_grad(true);
  EXPECT_EQ(x.norm().item(), 5.0);
  const Tensor rows = x.norm({1});
  EXPECT_EQ(values(rows), (Values{5, 0}));
  rows.sum().backward();
  const Values expected{0.6, 0.8, 0, 0};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(values(x.grad())[i], expected[i], 1e-15);
}

TEST(IsFinite, TellsNumbersInfinitiesAndNaN) {
  const Tensor x = tensor<double>({1, INFINITY, -INFINITY, NAN});
  for (const DType dtype : {kFloat64, kFloat32, kFloat16, kBFloat16}) {
    const Tensor y = x.to(dtype);
    EXPECT_EQ(values(y.isnan()), (Values{0, 0, 0, 1}));
    EXPECT_EQ(values(y.isinf()), (Values{0, 1, 1, 0}));
    EXPECT_EQ(values(y.isfinite()), (Values{1, 0, 0, 0}));
  }
  EXPECT_EQ(values(ones({2}, {.dtype = kUInt8}).isfinite()), (Values{1, 1}));
  EXPECT_EQ(values(ones({2}, {.dtype = kInt64}).isnan()), (Values{0, 0}));
}

}  // namespace
}  // namespace lockstep
