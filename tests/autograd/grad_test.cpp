#include <gtest/gtest.h>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
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

TEST(Grad, OfLeavesAndResultsLeavesNothingBehind) {
  const Tensor x = leaf(3), w = leaf(2);
  const Tensor h = x * w;
  const Tensor loss = h * h + x * 5.0;
  const std::vector<Tensor> gradients = grad({loss}, {h, x, w}, {}, {.retain_graph = true});
  EXPECT_EQ(gradients[0].item(), 12.0);
  EXPECT_EQ(gradients[1].item(), 29.0);
  EXPECT_EQ(gradients[2].item(), 36.0);
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
  loss.backward();
  EXPECT_EQ(x.grad().item(), 29.0);
  EXPECT_EQ(grad({x * 2.0, x * 3.0}, {x, x}, {leaf(10).detach(), leaf(1).detach()})[1].item(), 23.0);
  EXPECT_EQ(x.grad().item(), 29.0);
  EXPECT_EQ(grad({x}, {x})[0].item(), 1.0);
}

TEST(Grad, ComputesWhatLeadsToTheInputsAlone) {
  Log log;
  const Tensor x = leaf(1), other = leaf(1);
  const Tensor a = logged({x}, log, "a");
  const Tensor aside = logged({other, a}, log, "aside");
  const Tensor b = logged({a}, log, "b");
  const Tensor c = logged({b, logged({other}, log, "far")}, log, "c");
  EXPECT_EQ(grad({c, aside}, {b}, {}, {.retain_graph = true})[0].item(), 1.0);
  EXPECT_EQ(log, Log({"c"}));
  log.clear();
  EXPECT_EQ(grad({c, aside}, {b, x}, {}, {.retain_graph = true})[1].item(), 2.0);
  EXPECT_EQ(log, Log({"c", "b", "aside", "a"}));
  log.clear();
  EXPECT_FALSE(grad({aside}, {b}, {}, {.retain_graph = true, .allow_unused = true})[0].defined());
  EXPECT_EQ(log, Log());
  c.backward();
  EXPECT_EQ(other.grad().item(), 1.0);
}

TEST(Grad, HooksChangeIt) {
  const Tensor x = leaf(3);
  const Tensor y = x * 2.0;
  y.register_hook([](const Tensor& g) { return g * 10.0; });
  x.register_hook([](const Tensor& g) { return g + 1.0; });
  int accumulated = 0;
  x.register_post_accumulate_grad_hook([&](const Tensor&) { ++accumulated; });
  const auto gradients = grad({y * 1.0}, {x, y});
  EXPECT_EQ(gradients[0].item(), 21.0);
  EXPECT_EQ(gradients[1].item(), 10.0);
  EXPECT_EQ(accumulated, 0);
}

TEST(Grad, InsideABackwardPassOverTheSameLeaves) {
  const Tensor x = leaf(3);
  double inner = 0;
  const Tensor y = probe({x}, 2, [&] {
    const EnableGradGuard recording;
    inner = grad({x * x}, {x})[0].item();
  });
  (y + x).backward();
  EXPECT_EQ(inner, 6.0);
  EXPECT_EQ(x.grad().item(), 3.0);
}

TEST(Grad, WrongCallsAreErrors) {
  const Tensor x = leaf(3), apart = leaf(1), plain = ones({2});
  const Tensor y = x * x;
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] { grad({y}, {apart}, {}, {.retain_graph = true}); },
       "[grad] no root depends on input 0, of shape []; pass allow_unused = true"},
      {[&] {
         grad({y}, {x, plain});
       },
       "[grad] input 1, of shape [2], does not require gradients"},
      {[&] { grad({y}, {Tensor()}); }, "[grad] input 0 is undefined"},
      {[&] {
         grad({y, Tensor()}, {x});
       },
       "[grad] root 1 is undefined"},
      {[&] { grad({}, {x}); }, "found 0 roots and 0 gradients"},
      {[&] { grad({y}, {x}, {ones({2})}); }, "[grad] the gradient of root 0 does not match it"},
      {[&] { grad({x.expand({2})}, {x}); }, "[grad] a gradient must be given for root 0, of shape [2]"},
      {[&] { grad({plain.sum()}, {x}); }, "[grad] the tensor does not require gradients"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
  EXPECT_EQ(grad({y}, {x})[0].item(), 6.0);  // the graph is as it was
}

}  // namespace
}  // namespace lockstep
