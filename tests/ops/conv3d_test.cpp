// Convolutions of volumes beside plain loops over their layers.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/error.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Volumes {
  Shape x, weight;
  Conv3dOptions options;
};

/// Each layer of the result as the sum of conv2d() of the layers that it meets.
Tensor layer_by_layer(const Tensor& x, const Tensor& weight, const Conv3dOptions& o) {
  const Conv2dOptions layer{.stride = {o.stride.h, o.stride.w},
                            .padding = {o.padding.h, o.padding.w},
                            .dilation = {o.dilation.h, o.dilation.w},
                            .groups = o.groups};
  const std::int64_t taps = weight.size(2), reach = o.dilation.d * (taps - 1) + 1;
  const std::int64_t depth = (x.size(2) + 2 * o.padding.d - reach) / o.stride.d + 1;
  Tensor result;
  for (std::int64_t i = 0; i < depth; ++i)
    for (std::int64_t k = 0; k < taps; ++k) {
      const std::int64_t at = i * o.stride.d + k * o.dilation.d - o.padding.d;
      const Tensor part = conv2d(x.select(2, std::clamp<std::int64_t>(at, 0, x.size(2) - 1)).contiguous(),
                                 weight.select(2, k).contiguous(), {}, layer);
      if (!result.defined()) result = zeros({part.size(0), part.size(1), depth, part.size(2), part.size(3)}, kFloat64);
      if (at >= 0 && at < x.size(2)) result.select(2, i).add_(part);
    }
  return result;
}

TEST(Conv3d, IsASumOverLayers) {
  const Volumes cases[] = {
      {{2, 3, 4, 5, 5}, {4, 3, 3, 3, 3}, {.padding = 1}},
      {{1, 2, 7, 4, 3}, {2, 2, 2, 1, 3}, {.stride = {2, 1, 2}, .padding = {0, 1, 1}, .dilation = {3, 1, 1}}},
      {{2, 4, 5, 3, 3}, {6, 2, 3, 2, 2}, {.stride = {3, 1, 1}, .padding = {2, 0, 0}, .groups = 2}},
      {{1, 2, 1, 3, 3}, {2, 2, 3, 1, 1}, {.padding = {4, 0, 0}}},  // most layers meet nothing
      {{2, 3, 5, 2, 3}, {4, 3, 3, 1, 1}, {.stride = {2, 1, 1}, .padding = {1, 0, 0}}},
      {{2, 3, 3, 2, 3}, {4, 3, 1, 1, 1}, {}},
  };
  for (const auto& [sizes, filters, options] : cases) {
    const Tensor x = make_leaf(sizes, 1), weight = make_leaf(filters, 2);
    expect_close(conv3d(x, weight, {}, options), layer_by_layer(x.detach(), weight.detach(), options), 1e-12, 1e-12);
    const Tensor bias = make_leaf({filters[0]}, 3);
    gradcheck([o = options](const auto& in) { return conv3d(in[0], in[1], in[2], o); }, {x, weight, bias});
  }
}

// <conv3d(x), y> = <x, conv_transpose3d(y)>
TEST(Conv3d, TheTransposeIsOne) {
  const Conv3dOptions options{.stride = {2, 1, 2}, .padding = {1, 1, 0}, .dilation = {1, 2, 1}, .groups = 2};
  const Tensor x = make_input({2, 4, 6, 5, 5}, 1), weight = make_input({6, 2, 3, 2, 3}, 2);
  const Tensor y = conv3d(x, weight, {}, options), z = make_leaf(y.sizes(), 3), filters = make_leaf(weight.sizes(), 2);
  const ConvTranspose3dOptions back{options.stride, options.padding, {1, 0, 0}, options.groups, options.dilation};
  const Tensor turned = conv_transpose3d(z, filters, {}, back);
  ASSERT_EQ(turned.sizes(), x.sizes());
  EXPECT_NEAR((y * z).sum().item<double>(), (x * turned).sum().item<double>(), 1e-10);
  gradcheck([&](const auto& in) { return conv_transpose3d(in[0], in[1], {}, back); }, {z, filters});
}

// Channels that do not meet: in float32, beside the same in float64, which is computed in another way.
TEST(Conv3d, ChannelsThatDoNotMeet) {
  const Volumes cases[] = {
      {{2, 4, 5, 6, 7}, {4, 1, 3, 3, 3}, {.padding = 1, .groups = 4}},
      {{1, 3, 7, 5, 4},
       {3, 1, 3, 2, 3},
       {.stride = {1, 2, 1}, .padding = {2, 0, 1}, .dilation = {2, 1, 1}, .groups = 3}},
      {{2, 2, 1, 4, 4}, {2, 1, 5, 3, 3}, {.padding = {3, 1, 1}, .groups = 2}},  // some layers meet nothing
      {{1, 2, 4, 5, 5}, {2, 1, 1, 3, 3}, {.groups = 2}},
  };
  for (const Volumes& each : cases) {
    const Shape &sizes = each.x, &filters = each.weight;
    const auto run = [&, o = each.options](DType dtype) {
      std::vector<Tensor> in{make_leaf(sizes, 1), make_leaf(filters, 2), make_leaf({filters[0]}, 3)}, leaves;
      for (const Tensor& t : in) leaves.push_back(t.detach().to(dtype).set_requires_grad(true));
      const Tensor y = conv3d(leaves[0], leaves[1], leaves[2], o);
      std::vector<Tensor> results{y};
      const Tensor weights = make_input(y.sizes(), 4).to(dtype).set_requires_grad(true);
      // The second derivatives are those of a function of the gradients.
      const std::vector<Tensor> first = grad({(y * weights).sum()}, leaves, {}, {.create_graph = true});
      Tensor all = zeros({}, {.dtype = dtype});
      for (const Tensor& g : first) all = all + (g * g).sum();
      for (const Tensor& g : first) results.push_back(g);
      for (const Tensor& g : grad({all}, {leaves[0], leaves[1], weights})) results.push_back(g);
      return results;
    };
    const std::vector<Tensor> exact = run(kFloat64), found = run(kFloat32);
    for (std::size_t i = 0; i < exact.size(); ++i) expect_close(found[i].to(kFloat64), exact[i], 1e-4, 1e-4);
  }
}

// What is computed in another type or refused with meeting channels is so with channels of their own.
TEST(Conv3d, ChannelsThatDoNotMeetHaveTheSameTypes) {
  const Tensor x = make_input({1, 2, 3, 4, 4}, 1, kFloat32), weight = make_input({2, 1, 3, 3, 3}, 2, kFloat32);
  {
    const AutocastGuard guard(kBFloat16, DeviceType::cpu);
    EXPECT_EQ(conv3d(x, weight, make_input({2}, 3, kFloat32), {.groups = 2}).dtype(), kBFloat16);
  }
  EXPECT_THROW(conv3d(x, weight, make_input({2}, 3).to(kFloat64), {.groups = 2}), Error);
  EXPECT_THROW(conv3d(x, weight.to(kFloat64), {}, {.groups = 2}), Error);
}

// The first of four layers meets the first tap alone, whose gradients are then the only ones that are not finite.
TEST(Conv3d, WhatATapDoesNotMeetDoesNotReachItsGradient) {
  const Tensor x = make_input({1, 2, 4, 4, 6}, 1, kFloat32), weight = make_leaf({2, 1, 3, 3, 3}, 2, kFloat32);
  fill_values(x.narrow(2, 0, 1), std::numeric_limits<double>::quiet_NaN());
  conv3d(x, weight, {}, {.groups = 2}).sum().backward();
  for (std::int64_t tap = 0; tap < 3; ++tap)
    EXPECT_EQ(all(isnan(weight.grad().select(2, tap))).item<bool>(), tap == 0) << tap;
  EXPECT_FALSE(any(isnan(weight.grad().narrow(2, 1, 2))).item<bool>());
}

TEST(Conv3d, TransposedWithABiasHasTheGuardsType) {
  const AutocastGuard guard(kBFloat16, DeviceType::cpu);
  const Tensor x = make_input({1, 2, 3, 4, 4}, 1, kFloat32), weight = make_input({2, 3, 3, 3, 3}, 2, kFloat32);
  EXPECT_EQ(conv_transpose3d(x, weight).dtype(), kBFloat16);
  EXPECT_EQ(conv_transpose3d(x, weight, make_input({3}, 3, kFloat32)).dtype(), kBFloat16);
}

// Half types are rounded once, however many layers are added up.
TEST(Conv3d, LayersOfHalfTypesAreAddedUpInFloat) {
  const Tensor x = make_input({1, 1, 1, 1, 1}, 1).to(kBFloat16), ones_of_taps = ones({1, 1, 15, 1, 2}, kBFloat16);
  // 15 layers of one value each meet at the middle of what a transposed convolution gives.
  const Tensor layers = x.expand({1, 1, 15, 1, 1}).contiguous();
  const Tensor y = conv_transpose3d(layers, ones_of_taps);
  const double exact = 15.0 * x.to(kFloat64).item<double>();
  EXPECT_EQ(y.select(2, 14).reshape({2}).narrow(0, 0, 1).item<double>(),
            full({}, exact).to(kFloat32).to(kBFloat16).item<double>());
}

}  // namespace
}  // namespace lockstep::testing
