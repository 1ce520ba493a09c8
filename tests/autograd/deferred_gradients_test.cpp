// Backward passes in two parts: Note [Deferred gradients].

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "tests/support/probe_node.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;
using Tensors = std::vector<Tensor>;
using Net = std::function<Tensor(const Tensor& x, const Tensors& weights)>;

Tensors leaves(const Tensors& values) {
  Tensors all;
  for (const Tensor& each : values) {
    all.push_back(each.detach().clone());
    all.back().set_requires_grad(true);
  }
  return all;
}

struct Gradients {
  Tensor x;
  Tensors weights;
};

Gradients at_once(const Net& net, const Tensor& x, const Tensors& weights) {
  const Tensors all = leaves(weights);
  const Tensor input = leaves({x}).front(), y = net(input, all);
  Engine::backward({{y}}, {{ones_like(y)}});
  Gradients found{input.grad(), {}};
  for (const Tensor& each : all) found.weights.push_back(each.grad());
  return found;
}

Gradients in_two(const Net& net, const Tensor& x, const Tensors& weights) {
  const Tensors all = leaves(weights);
  const Tensor input = leaves({x}).front(), y = net(input, all);
  DeferredGradients deferred;
  Gradients found{Engine::backward_to(input, {{y}}, {{ones_like(y)}}, deferred), {}};
  EXPECT_FALSE(input.grad().defined());
  for (const Tensor& each : all) EXPECT_FALSE(each.grad().defined()) << "before the second part";
  Engine::backward_deferred(std::move(deferred));
  EXPECT_FALSE(input.grad().defined());
  for (const Tensor& each : all) found.weights.push_back(each.grad());
  return found;
}

void expect_same(const Net& net, const Tensor& x, const Tensors& weights) {
  const Gradients one = at_once(net, x, weights), two = in_two(net, x, weights);
  EXPECT_TRUE(equal(one.x, two.x));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ASSERT_TRUE(one.weights[i].defined() && two.weights[i].defined()) << i;
    EXPECT_TRUE(equal(one.weights[i], two.weights[i])) << i;
  }
}

TEST(DeferredGradients, HaveTheBitsOfOnePass) {
  manual_seed(3);
  const auto mlp = [](const Tensor& x, const Tensors& w) {
    return linear(gelu(layer_norm(linear(x, w[0], w[1]), {24}, w[2], w[3])), w[4]).square();
  };
  expect_same(mlp, randn({17, 12}), {randn({24, 12}), randn({24}), randn({24}), randn({24}), randn({7, 24})});
  const auto conv = [](const Tensor& x, const Tensors& w) {
    const Tensor y = relu(max_pool2d(conv2d(x, w[0], w[1], {.padding = 1}), 2));
    return linear(conv2d(y, w[2]).flatten(1), w[3]).square();
  };
  expect_same(conv, randn({3, 2, 8, 8}), {randn({5, 2, 3, 3}), randn({5}), randn({4, 5, 3, 3}), randn({6, 4 * 2 * 2})});
  const auto products = [](const Tensor& x, const Tensors& w) { return (matmul(x, w[0]) * w[1]).tanh().matmul(w[2]); };
  expect_same(products, randn({2, 5, 6}), {randn({6, 4}), randn({4}), randn({4, 3})});
}

// Four uses of one weight, some of which lead to x and some do not: the order of their sum is that of one pass.
TEST(DeferredGradients, AWeightOfManyUsesIsAddedUpInTheSameOrder) {
  manual_seed(5);
  const auto net = [](const Tensor& x, const Tensors& w) {
    const Tensor scaled = w[0] * 0.37;  // of the weight alone
    Tensor y = linear(x, w[0]) * w[0].sum();
    y = linear(y.tanh(), scaled) + linear(y, w[0].t().contiguous());
    return y * softmax(w[0], -1).mean() + w[0].square().sum();
  };
  for (int trial = 0; trial < 8; ++trial) expect_same(net, randn({9, 6}), {randn({6, 6}) * 3.3});
}

TEST(DeferredGradients, WhatDoesNotLeadToTheInputWaitsWhole) {
  const Tensors w = leaves({randn({4, 4}), randn({4, 4})});
  const Tensor x = leaves({randn({3, 4})}).front();
  const Tensor y = linear(x, w[0]).sum(), apart = (w[1] * 2.0).sum();
  DeferredGradients deferred;
  const Tensors roots{y, apart}, seeds{full({}, 1.0), full({}, 3.0)};
  EXPECT_TRUE(Engine::backward_to(x, roots, seeds, deferred).defined());
  EXPECT_FALSE(w[1].grad().defined());
  const Tensor later = leaves({randn({2})}).front();
  Engine::backward_deferred(std::move(deferred), {{later}}, {{full({2}, 5.0)}});
  EXPECT_TRUE(equal(w[1].grad(), full({4, 4}, 6.0)));
  EXPECT_TRUE(w[0].grad().defined());
  EXPECT_TRUE(equal(later.grad(), full({2}, 5.0)));

  // No path at all.
  DeferredGradients rest;
  const Tensor z = (w[1] * 4.0).sum();
  EXPECT_FALSE(Engine::backward_to(x, {{z}}, {{full({}, 1.0)}}, rest).defined());
  w[1].set_grad({});
  Engine::backward_deferred(std::move(rest));
  EXPECT_TRUE(equal(w[1].grad(), full({4, 4}, 4.0)));

  // The input is the output.
  DeferredGradients none;
  EXPECT_TRUE(equal(Engine::backward_to(x, {{x}}, {{full({3, 4}, 2.0)}}, none), full({3, 4}, 2.0)));
  Engine::backward_deferred(std::move(none));
}

TEST(DeferredGradients, HooksRunOnce) {
  const Tensors w = leaves({randn({4, 4}), randn({4})});
  const Tensor x = leaves({randn({3, 4})}).front();
  const Tensor hidden = linear(x, w[0]), y = hidden * w[1];
  int of_hidden = 0, of_x = 0, of_weight = 0;
  hidden.register_hook([&](const Tensor& grad) {
    ++of_hidden;
    return grad * 2.0;
  });
  x.register_hook([&](const Tensor& grad) {
    ++of_x;
    return grad;
  });
  w[0].register_hook([&](const Tensor& grad) {
    ++of_weight;
    return grad;
  });
  DeferredGradients deferred;
  const Tensor found = Engine::backward_to(x, {{y}}, {{ones_like(y)}}, deferred);
  EXPECT_EQ(of_weight, 0);
  Engine::backward_deferred(std::move(deferred));
  EXPECT_EQ(of_hidden, 1);
  EXPECT_EQ(of_x, 1);
  EXPECT_EQ(of_weight, 1);
  const Tensor slope = w[1].detach() * 2.0;
  EXPECT_TRUE(allclose(found, matmul(slope.expand({3, 4}), w[0].detach())));
  EXPECT_TRUE(allclose(w[0].grad(), matmul(slope.expand({3, 4}).t(), x.detach())));
}

/// Has two inputs, and says how often it runs.
class CountingBackward final : public Node {
 public:
  const char* name() const override { return "CountingBackward"; }
  TensorList apply(TensorList grads) override {
    ++*runs;
    return {grads[0] * 2.0, grads[0] * 3.0};
  }
  int* runs = nullptr;
};

TEST(DeferredGradients, AnOperationThatDoesNotSayOtherwiseRunsOnce) {
  const Tensor x = leaves({randn({3})}).front(), w = leaves({randn({3})}).front();
  int runs = 0;
  const Tensor out = x.detach() * 2.0 + w.detach() * 3.0;
  record<CountingBackward>(out, {&x, &w})->runs = &runs;
  DeferredGradients deferred;
  EXPECT_TRUE(equal(Engine::backward_to(x, {{out}}, {{full({3}, 1.0)}}, deferred), full({3}, 2.0)));
  EXPECT_FALSE(w.grad().defined());
  Engine::backward_deferred(std::move(deferred));
  EXPECT_TRUE(equal(w.grad(), full({3}, 3.0)));
  EXPECT_EQ(runs, 1);
}

TEST(DeferredGradients, TheFirstPartFreesWhatTheSecondDoesNotNeed) {
  const Tensor w = leaves({randn({8, 8})}).front(), x = leaves({randn({8, 8})}).front();
  const Tensor y = linear(x, w).exp().exp().exp().exp();
  DeferredGradients deferred;
  Engine::backward_to(x, {{y}}, {{ones_like(y)}}, deferred);
  EXPECT_NE(error_of([&] { y.backward(ones_like(y)); }).find("was freed by an earlier backward()"), std::string::npos);
  Engine::backward_deferred(std::move(deferred));
  EXPECT_TRUE(w.grad().defined());
}

// Dropped without its second part, as where a stage fails.
TEST(DeferredGradients, MayBeDropped) {
  const Tensor w = leaves({randn({8, 8})}).front(), x = leaves({randn({8, 8})}).front();
  {
    DeferredGradients deferred;
    Tensor y = x;
    for (int i = 0; i < 1000; ++i) y = y * w;
    Engine::backward_to(x, {{y}}, {{ones_like(y)}}, deferred);
  }
  EXPECT_FALSE(w.grad().defined());
}

TEST(DeferredGradients, AnInputWithoutGradientsIsRefused) {
  const Tensor w = leaves({randn({2})}).front(), y = w * 2.0;
  DeferredGradients deferred;
  EXPECT_NE(error_of([&] {
              Engine::backward_to(randn({2}), {{y}}, {{ones_like(y)}}, deferred);
            }).find("does not require gradients"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
