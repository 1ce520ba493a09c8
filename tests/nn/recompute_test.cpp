#include <gtest/gtest.h>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/nn.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Net : nn::Module {
  using nn::Module::Module;
  nn::Linear in{this, "in", 6, 8};
  nn::TransformerBlock block{this, "block", 8, 2, {.dropout = 0.3}};
  nn::Linear out{this, "out", 8, 3};
  bool recomputes = false;

  Tensor forward(Tensor x) override {
    x = dropout(in(x), 0.2, is_training());
    x = recomputes ? nn::recompute(block, x) : block(x);
    return dropout(out(x), 0.2, is_training());
  }
};

/// Output and gradients of two passes that add up.
std::vector<std::vector<float>> results(bool recomputes, DType amp = kFloat32, bool frozen = false) {
  manual_seed(3);
  Net net;
  net.recomputes = recomputes;
  if (frozen) net.block.linear1.set_requires_grad(false);
  std::vector<std::vector<float>> bits;
  for (int pass = 0; pass < 2; ++pass) {
    const RandomKeyGuard key(static_cast<std::uint64_t>(pass), 1);
    const Tensor x = make_input({2, 5, 6}, 4, kFloat32);
    Tensor y;
    {
      const AutocastGuard autocast(amp, DeviceType::cpu);
      y = net(x);
    }
    y.to(kFloat32).square().sum().backward();
    bits.push_back(y.to(kFloat32).to_vector<float>());
  }
  for (const Tensor& p : net.parameters())
    if (p.grad().defined()) bits.push_back(p.grad().to_vector<float>());
  return bits;
}

TEST(Recompute, GivesTheSameBits) {
  for (const DType amp : {kFloat32, kBFloat16}) {
    EXPECT_EQ(results(true, amp), results(false, amp)) << name(amp);
    EXPECT_EQ(results(true, amp, true), results(false, amp, true)) << name(amp);
  }
}

TEST(Recompute, HooksOfParametersRunOnceWithTheWholeGradient) {
  manual_seed(1);
  nn::Linear layer(4, 4);
  int calls = 0;
  layer.weight.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  const Tensor x = make_leaf({3, 4}, 2, kFloat32);
  (nn::recompute(layer, x) * 2.0).sum().backward();
  EXPECT_EQ(calls, 1);
  const Tensor gradient = layer.weight.grad();
  layer.zero_grad(true);
  (layer(x.detach()) * 2.0).sum().backward();
  EXPECT_EQ(layer.weight.grad().to_vector<float>(), gradient.to_vector<float>());
  EXPECT_TRUE(x.grad().defined());
}

// As in any other call of the module: in both passes those for forward, once those for backward.
TEST(Recompute, HooksOfTheModuleRun) {
  manual_seed(1);
  nn::Linear layer(4, 4);
  int before = 0, after = 0, backward = 0;
  layer.register_forward_pre_hook([&](auto&, Tensor& x) { ++before, x = x * 2.0; });
  layer.register_forward_hook([&](auto&, const Tensor&, Tensor& out) { ++after, out = out + 1.0; });
  layer.register_full_backward_hook(
      [&](auto&, Tensor& grad_input, const Tensor&) { ++backward, grad_input = grad_input * 3.0; });
  const Tensor x = make_leaf({3, 4}, 2, kFloat32), same = make_leaf({3, 4}, 2, kFloat32);
  const Tensor y = nn::recompute(layer, x);
  y.square().sum().backward();
  EXPECT_EQ(before, 2);
  EXPECT_EQ(after, 2);
  EXPECT_EQ(backward, 1);
  const Tensor plain = layer(same);
  plain.square().sum().backward();
  EXPECT_EQ(y.to_vector<float>(), plain.to_vector<float>());
  EXPECT_EQ(x.grad().to_vector<float>(), same.grad().to_vector<float>());
}

// What is computed in backward must be what was computed in forward.
TEST(Recompute, SaysWhatHasChangedInBetween) {
  struct Block : nn::Module {
    nn::Linear in{this, "in", 4, 4}, out{this, "out", 4, 4};
    nn::Dropout drop{this, "drop", 0.5};
    Tensor forward(Tensor x) override { return out(drop(relu(in(x)))); }
  };
  const auto error_after = [](const std::function<void(Block&)>& change) {
    Block block;
    const Tensor loss = nn::recompute(block, make_leaf({3, 4}, 2, kFloat32)).sum();
    change(block);
    return error_of([&] { loss.backward(); });
  };
  const std::string frozen =
      "[recompute] a parameter of shape [4, 4] required gradients in forward and was frozen before backward, which "
      "computes the module again; freeze it before forward or after backward";
  EXPECT_EQ(error_after([](Block& block) { block.in.set_requires_grad(false); }), frozen);
  EXPECT_EQ(error_after([](Block& block) { block.set_requires_grad(false); }), frozen);
  EXPECT_EQ(error_after([](Block& block) { block.drop.eval(); }),
            "[recompute] a lockstep::nn::Dropout was in training mode in forward and is in the other mode in backward, "
            "which computes it again; call train() or eval() before forward or after backward");
  EXPECT_NE(error_after([](Block& block) { block.eval(); }).find("was in training mode in forward"), std::string::npos);
  Block block;
  const Tensor loss = nn::recompute(block, make_leaf({3, 4}, 2, kFloat32)).sum();
  block.eval();
  block.set_requires_grad(false);
  block.train();
  block.set_requires_grad(true);
  loss.backward();
  EXPECT_TRUE(block.in.weight.grad().defined());
}

// A tensor of the recomputed pass may be kept: its history holds the module's parameters as any other does.
TEST(Recompute, WhatIsKeptOfItKeepsItsHistory) {
  Tensor inside;
  auto layer = std::make_unique<nn::Linear>(4, 4);
  const Tensor y = nn::recompute(*layer, make_leaf({3, 4}, 2, kFloat32), [&](const Tensor& x) {
    inside = exp((*layer)(x));
    return inside * 2.0;
  });
  EXPECT_EQ(inside.storage()->use_count(), 1u);
  y.sum().backward();
  const Tensor gradient = layer->bias.grad();
  layer->zero_grad(true);
  EXPECT_TRUE(inside.requires_grad());
  EXPECT_NE(error_of([&] { inside.sum().backward(); }).find("was freed"), std::string::npos);
  layer.reset();
  inside = Tensor();
}

struct Normalised : nn::Module {
  using nn::Module::Module;
  nn::Linear in{this, "in", 6, 8};
  nn::BatchNorm1d norm{this, "norm", 8};
  nn::BatchNorm1d average{this, "average", 8, {.momentum = std::nullopt}};  // of all batches, so the count counts
  nn::Linear out{this, "out", 8, 3};

  Tensor forward(Tensor x) override { return out(average(relu(norm(in(x))))); }
};

enum class Calls { plain, once, nested };

/// Outputs, gradients and buffers of three passes.
std::vector<std::vector<double>> normalised(Calls calls) {
  manual_seed(5);
  Normalised net;
  std::vector<std::vector<double>> bits;
  for (std::uint64_t pass = 0; pass < 3; ++pass) {
    const Tensor x = make_input({7, 6}, pass, kFloat32);
    const auto inner = [&](const Tensor& input) { return nn::recompute(net, input); };
    const Tensor y = calls == Calls::plain  ? net(x)
                     : calls == Calls::once ? nn::recompute(net, x)
                                            : nn::recompute(net, x, inner);
    y.square().sum().backward();
    bits.push_back(y.to_vector<double>());
    for (const Tensor& buffer : net.buffers()) bits.push_back(buffer.to_vector<double>());
  }
  for (const Tensor& p : net.parameters()) bits.push_back(p.grad().to_vector<double>());
  net.eval();
  bits.push_back(net(make_input({2, 6}, 9, kFloat32)).to_vector<double>());
  return bits;
}

TEST(Recompute, BatchNormCountsTheBatchOnce) {
  const auto plain = normalised(Calls::plain);
  EXPECT_EQ(normalised(Calls::once), plain);
  EXPECT_EQ(normalised(Calls::nested), plain);
}

TEST(Recompute, AResultOfAnIntegerTypeNeedsNoGradient) {
  nn::Linear layer(4, 4);
  const Tensor x = make_leaf({3, 4}, 2, kFloat32), largest = layer(x).argmax(1);
  const Tensor same = nn::recompute(layer, x, [&](const Tensor& input) { return layer(input).argmax(1); });
  EXPECT_EQ(same.to_vector<std::int64_t>(), largest.to_vector<std::int64_t>());
  EXPECT_FALSE(same.requires_grad());
}

TEST(Recompute, WithoutRecordingItIsTheModule) {
  const NoGradGuard no_grad;
  nn::Linear layer(4, 4);
  EXPECT_FALSE(nn::recompute(layer, ones({1, 4})).requires_grad());
}

TEST(RecomputeErrors, AParameterThatChangedIsNamed) {
  nn::Linear layer(4, 4);
  const Tensor y = nn::recompute(layer, ones({1, 4}));
  {
    const NoGradGuard no_grad;
    layer.weight.mul_(2.0);
  }
  EXPECT_NE(error_of([&] { y.sum().backward(); }).find("[recompute] a parameter of shape [4, 4] changed"),
            std::string::npos);
}

TEST(Recompute, TakesAModuleOfSeveralInputs) {
  manual_seed(1);
  nn::Linear layer(4, 4);
  const Tensor x = make_leaf({3, 4}, 2, kFloat32), scale = make_leaf({3, 4}, 3, kFloat32);
  const auto compute = [&](const std::vector<Tensor>& in) { return layer(in[0]) * in[1]; };
  const auto gradients = [&](const Tensor& y) { return grad({y.square().sum()}, {x, scale, layer.weight}); };
  const std::vector<Tensor> plain = gradients(compute({x, scale}));
  const std::vector<Tensor> again = gradients(nn::recompute(layer, {x, scale}, compute));
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(again[i].to_vector<float>(), plain[i].to_vector<float>());
}

TEST(Recompute, SaysWhatItReadsBesides) {
  nn::Linear layer(4, 4), other(4, 4);
  const Tensor x = make_leaf({3, 4}, 2, kFloat32);
  const Tensor of_function = nn::recompute({x}, [&](const std::vector<Tensor>& in) { return layer(in[0]); });
  EXPECT_NE(error_of([&] { of_function.sum().backward(); }).find("reads a tensor of shape [4"), std::string::npos);
  const Tensor of_module = nn::recompute(layer, x, [&](const Tensor& in) { return other(layer(in)); });
  EXPECT_NE(error_of([&] { of_module.sum().backward(); }).find("reads a tensor"), std::string::npos);
  other.set_requires_grad(false);
  nn::recompute(layer, x, [&](const Tensor& in) { return other(layer(in)); }).sum().backward();
  EXPECT_TRUE(layer.weight.grad().defined());
}

TEST(Recompute, MayMakeLeavesOfItsOwn) {
  nn::Linear layer(4, 4);
  const Tensor x = make_leaf({3, 4}, 2, kFloat32);
  nn::recompute(layer, x,
                [&](const Tensor& in) {
                  return layer(in) + zeros({3, 4}).requires_grad_();
                })
      .sum()
      .backward();
  EXPECT_TRUE(layer.weight.grad().defined() && x.grad().defined());
}

TEST(Recompute, SaysThatItsInputWasChanged) {
  nn::Linear layer(4, 4);
  Tensor x = ones({3, 4});
  EXPECT_NE(error_of([&] {
              nn::recompute(layer, x, [&](const Tensor& in) {
                Tensor same = in;
                return layer(same.mul_(2.0));
              });
            }).find("changed its input 0"),
            std::string::npos);
  layer.set_requires_grad(false);
  const Tensor y = nn::recompute(layer, make_leaf({3, 4}, 2, kFloat32)).sum();
  layer.set_requires_grad(true);
  EXPECT_NE(error_of([&] { y.backward(); }).find("was frozen in forward"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
