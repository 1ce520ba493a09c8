// What follows a batch norm of images that lie channels last is computed with it, there and back: the bits are those of
// the operations one by one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/math_mode.h"
#include "tests/support/channels_last_test_base.h"
#include "tests/support/pending_values.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

class CudaNormChains : public ChannelsLastTest {
 protected:
  /// Computed now, and where it lies: nothing is joined to it any more.
  static Tensor made(const Tensor& x) {
    EXPECT_TRUE(channels_last_of(x).defined());
    return x;
  }
};

struct Norm {
  Tensor weight = {}, bias = {}, mean = {}, var = {};
  bool training = true;
  Tensor operator()(const Tensor& x) const {
    return batch_norm(x, mean, var, {.weight = weight, .bias = bias, .training = training});
  }
};

TEST_P(CudaNormChains, GiveTheBitsOfTheOperationsOneByOne) {
  const Tensor x = values({3, 8, 7, 5}, 1), filters = values({16, 8, 3, 3}, 2), plain = values({3, 16, 7, 5}, 3);
  const auto image = [&](std::uint32_t seed) { return conv2d(x, values({16, 8, 3, 3}, seed), {}, {.padding = 1}); };
  const auto chains = [&](const auto& each) {
    const Norm norm{.weight = values({16}, 4), .bias = values({16}, 5)};
    std::vector<std::vector<float>> found;
    const auto take = [&](const Tensor& result) {
      EXPECT_TRUE(channels_last_of(result).defined());
      found.push_back(bits(result.to(kFloat32)));
    };
    const NoGradGuard guard;
    const Tensor shortcut = image(7);
    const auto normed = [&] { return each(norm(image(6))); };
    take(each(relu(normed())));
    take(each(relu(each(normed() + shortcut))));
    take(each(relu(each(shortcut + normed()))));
    take(each(each(relu(normed())) + shortcut));
    take(each(relu(each(each(relu(normed())) + shortcut))));
    take(each(relu(each(normed() + plain))));
    const auto added = [&](const Tensor& other) {
      Tensor y = normed();
      y += other;
      return each(y);
    };
    take(each(relu(added(shortcut))));
    take(each(relu(added(plain))));
    take(each(normed() + each(norm(shortcut))));
    take(each(each(normed() + shortcut) + plain));
    const Tensor twice = normed();
    take(each(twice + twice));
    take(each(twice + each(relu(twice))));
    // Images of other sizes in the same memory do not lie so.
    found.push_back(bits(each(relu(each(twice.view({3, 16, 5, 7}) + values({3, 16, 5, 7}, 8)))).to(kFloat32)));
    found.push_back(bits(each(relu(twice.view({3, 8, 14, 5}) + values({3, 8, 14, 5}, 8))).to(kFloat32)));
    return found;
  };
  const auto joined = chains([](const Tensor& t) { return t; });
  const auto one_by_one = chains([](const Tensor& t) {
    channels_last_of(t);
    return t;
  });
  for (std::size_t i = 0; i < joined.size(); ++i) EXPECT_TRUE(same_bits(joined[i], one_by_one[i])) << "chain " << i;
}

TEST_P(CudaNormChains, NothingButTheEndOfAChainIsComputed) {
  const Tensor x = values({2, 8, 6, 5}, 1), filters = values({8, 8, 3, 3}, 2);
  const Norm norm;
  const Tensor first = conv2d(x, filters, {}, {.padding = 1}), normed = norm(first), sum = normed + x, last = relu(sum);
  EXPECT_TRUE(channels_last_of(last).defined());
  for (const Tensor* each : {&normed, &sum}) EXPECT_TRUE(is_pending(*each) && !is_laid_out(*each));
}

// Also where something else has read the norm's result since.
TEST_P(CudaNormChains, WhatIsJoinedStaysLaidOutWhereTheBeginningWasReadFirst) {
  const NoGradGuard guard;
  const Norm norm{.weight = values({16}, 4), .bias = values({16}, 5)};
  const auto normed = [&] {
    return norm(conv2d(values({3, 8, 7, 5}, 1), values({16, 8, 3, 3}, 2), {}, {.padding = 1}));
  };
  const auto expected = [&](auto f) { return bits(f(made(normed())).to(kFloat32)); };
  const Tensor y = normed(), a = relu(y);
  const Tensor average = mean(y);
  EXPECT_TRUE(channels_last_of(a).defined());
  EXPECT_TRUE(same_bits(bits(a.to(kFloat32)), expected([](const Tensor& t) { return relu(t); })));
  const Tensor z = normed(), both = relu(z) + z;
  EXPECT_TRUE(channels_last_of(both).defined());
  EXPECT_TRUE(same_bits(bits(both.to(kFloat32)), expected([](const Tensor& t) { return relu(t) + t; })));
  const Tensor u = normed(), sum = relu(u + values({3, 16, 7, 5}, 3));
  made(u);
  EXPECT_TRUE(channels_last_of(sum).defined());
  EXPECT_TRUE(same_bits(bits(sum.to(kFloat32)), expected([](const Tensor& t) {
                          return relu(t + values({3, 16, 7, 5}, 3));
                        })));
}

// A hook may keep what it is given.
TEST_P(CudaNormChains, AGradientThatIsKeptKeepsNoGraph) {
  std::weak_ptr<Tensor> watched;
  {
    const Tensor x = values({4, 8, 6, 5}, 1).requires_grad_();
    const Tensor normed = Norm{}(conv2d(x, values({16, 8, 1, 1}, 2)));
    const auto slot = std::make_shared<Tensor>();
    watched = slot;
    normed.register_hook([slot](const Tensor& grad) {
      *slot = grad;
      return grad;
    });
    sum(relu(normed) * values(normed.sizes(), 6)).backward();
    EXPECT_TRUE(slot->defined());
  }
  EXPECT_TRUE(watched.expired());
}

// Another thread may have the input's values copied into their own order between the two kernels.
TEST_P(CudaNormChains, TheInputMayBeReadWhileItsGradientIsComputed) {
  const auto gradient = [&](bool read) {
    const Tensor x = values({4, 8, 6, 5}, 1).requires_grad_(), filters = values({16, 8, 1, 1}, 2);
    const Tensor convolved = conv2d(x, filters), y = relu(Norm{}(convolved));
    made(y);
    const Tensor loss = sum(y * values(y.sizes(), 6));
    std::thread other;
    if (read) other = std::thread([&] { (void)convolved.raw_data(); });
    loss.backward();
    if (read) other.join();
    return bits(x.grad().to(kFloat32));
  };
  const auto expected = gradient(false);
  // The last bits are those of a convolution's gradient in either order.
  const float largest = std::abs(*std::ranges::max_element(expected, {}, [](float v) { return std::abs(v); }));
  for (int i = 0; i < 20; ++i) {
    const auto found = gradient(true);
    for (std::size_t k = 0; k < found.size(); ++k) ASSERT_NEAR(found[k], expected[k], 0.02f * largest) << k;
  }
}

// The gradients of a chain whose relu's gradient is found from the norm's input, and of one in which a hook reads it.
TEST_P(CudaNormChains, GradientsAreThoseOfTheOperationsOneByOne) {
  for (const std::int64_t channels : {8, 24, 72})
    for (const bool training : {true, false})
      for (const bool affine : {true, false}) {
        int waiting = 0;
        const auto gradients = [&](bool read) {
          const Tensor x = values({4, 8, 6, 5}, 1).requires_grad_(),
                       filters = values({channels, 8, 1, 1}, 2).requires_grad_();
          Norm norm{.mean = values({channels}, 8).to(kFloat32),
                    .var = square(values({channels}, 9).to(kFloat32)) + 0.5,
                    .training = training};
          if (affine)
            norm.weight = values({channels}, 4).requires_grad_(), norm.bias = values({channels}, 5).requires_grad_();
          const Tensor normed = norm(conv2d(x, filters));
          normed.register_hook([&](const Tensor& grad) {
            waiting += is_pending(grad) && !is_laid_out(grad);
            if (read) channels_last_of(grad);
            return grad;
          });
          const Tensor y = relu(normed);
          made(y);
          sum(y * values(y.sizes(), 6)).backward();
          std::vector<Tensor> found{x.grad(), filters.grad()};
          if (affine) found.push_back(norm.weight.grad()), found.push_back(norm.bias.grad());
          return found;
        };
        const auto through = gradients(false), read = gradients(true);
        EXPECT_EQ(waiting, 2);
        for (std::size_t i = 0; i < through.size(); ++i)
          EXPECT_TRUE(same_bits(bits(through[i].to(kFloat32)), bits(read[i].to(kFloat32))))
              << i << " of " << channels << (training ? ", training" : "") << (affine ? ", affine" : "");
      }
}

// Which elements a relu let through is a fact of the forward pass.
TEST_P(CudaNormChains, AParameterThatChangesBeforeBackwardChangesNoGradient) {
  const auto gradient = [&](const std::function<void(const Tensor& bias)>& change) {
    const Tensor x = values({4, 8, 6, 5}, 1).requires_grad_(), filters = values({16, 8, 1, 1}, 2);
    const Tensor bias = values({16}, 5).requires_grad_();
    const Tensor y = relu(Norm{.weight = values({16}, 4), .bias = bias}(conv2d(x, filters)));
    const Tensor weights = values(y.sizes(), 6);
    made(y);
    change(bias);
    sum(y * weights).backward();
    return bits(x.grad().to(kFloat32));
  };
  const auto expected = gradient([](const Tensor&) {});
  EXPECT_TRUE(same_bits(gradient([](const Tensor& bias) {
                          const NoGradGuard guard;
                          bias.add_(3.0);
                        }),
                        expected));
  EXPECT_TRUE(same_bits(gradient([](const Tensor& bias) {
                          const NoGradGuard guard;
                          const Tensor other = bias.detach();
                          (void)other.raw_data();  // lent from now on
                          copy_values(mul(other, -1.0), other);
                        }),
                        expected));
}

TEST_P(CudaNormChains, AGraphThatIsKeptGivesTheSameGradientsTwice) {
  const Tensor x = values({4, 8, 6, 5}, 1).requires_grad_(), filters = values({16, 8, 1, 1}, 2);
  const Tensor y = relu(Norm{.bias = values({16}, 5)}(conv2d(x, filters)));
  const Tensor loss = sum(y * values(y.sizes(), 6));
  const Tensor first = grad({loss}, {x}, {}, {.retain_graph = true})[0], second = grad({loss}, {x})[0];
  EXPECT_TRUE(same_bits(bits(first.to(kFloat32)), bits(second.to(kFloat32))));
}

TEST_P(CudaNormChains, ReductionsReadImagesAsTheyLie) {
  const NoGradGuard guard;
  const auto image = [&] { return conv2d(values({3, 8, 7, 5}, 1), values({40, 8, 3, 3}, 2), {}, {.padding = 1}); };
  for (const Shape& dims : {Shape{2, 3}, Shape{1}, Shape{0, 2, 3}, Shape{0, 1, 2, 3}, Shape{3}}) {
    const Tensor x = made(image());
    const Tensor mean_there = mean(x, dims), var_there = var(x, dims), max_there = amax(x, dims);
    EXPECT_TRUE(is_laid_out(x)) << to_string(dims);
    const Tensor plain = x.to(kCPU);
    expect_close(mean_there.to(kFloat32).to(kCPU), mean(plain, dims).to(kFloat32), 2e-2, 1e-2);
    expect_close(var_there.to(kFloat32).to(kCPU), var(plain, dims).to(kFloat32), 2e-2, 1e-2);
    EXPECT_TRUE(same_bits(bits(max_there.to(kFloat32)), bits(amax(plain, dims).to(kFloat32))));
  }
}

TEST_P(CudaNormChains, PoolsHaveTheBitsOfImagesInTheirOwnOrder) {
  const MaxPool2dOptions kinds[] = {{},
                                    {.stride = 1},
                                    {.stride = 1, .padding = 1},
                                    {.stride = 2, .padding = 1, .ceil_mode = true},
                                    {.stride = {3, 1}, .padding = 1, .dilation = {2, 1}},
                                    {.stride = {2, 5}, .dilation = 3}};
  for (const std::int64_t channels : {8, 16, 20, 3})
    for (const Size2d kernel : {Size2d(2), Size2d(3), Size2d(2, 4), Size2d(17, 16)})
      for (const MaxPool2dOptions& options : kinds) {
        const Tensor image = values({2, channels, 20, 18}, 1);
        if (options.dilation != Size2d(1) && kernel.h > 4) continue;
        const auto run = [&](bool laid_out) {
          const Tensor x = image.detach().requires_grad_();
          const Tensor read = laid_out ? from_channels_last(to_channels_last(image)).requires_grad_() : x;
          const auto [y, places] = max_pool2d_with_indices(read, kernel, options);
          EXPECT_EQ(is_laid_out(y), laid_out);
          sum(y * values(y.sizes(), 2)).backward();
          return std::vector{bits(y.to(kFloat32)), bits(places.to(kFloat32)), bits(read.grad().to(kFloat32))};
        };
        const auto found = run(true), expected = run(false);
        for (std::size_t i = 0; i < found.size(); ++i)
          EXPECT_TRUE(same_bits(found[i], expected[i]))
              << i << " of " << channels << " channels, " << kernel.h << " x " << kernel.w;
      }
}

// Cast and turned round in one, in both directions.
TEST_P(CudaNormChains, CastsOfImagesAreExactInEitherOrder) {
  if (GetParam() == kFloat32) GTEST_SKIP() << "float32 is not cast to itself";
  const NoGradGuard guard;
  for (const Shape& sizes : {Shape{2, 8, 5, 7}, Shape{40, 3, 3, 3}, Shape{64, 64, 1, 1}, Shape{3, 70, 9, 9}}) {
    const Tensor x = make_input(sizes, 3, kFloat32), there = x.to(test_device()).requires_grad_();
    const Tensor expected = cast_values(x, GetParam()), back = cast_values(expected, kFloat32);
    const Tensor waiting = there.to(GetParam());
    EXPECT_TRUE(is_pending(waiting));
    EXPECT_TRUE(same_bits(bits(there.to(GetParam()).to(kFloat32)), bits(back))) << to_string(sizes);
    const Tensor turned = to_channels_last(waiting);
    EXPECT_TRUE(same_bits(bits(turned.to(kFloat32)), bits(as_channels_last(back).contiguous()))) << to_string(sizes);
    const Tensor wide = from_channels_last(turned).to(kFloat32);
    EXPECT_TRUE(is_pending(wide));
    EXPECT_TRUE(same_bits(bits(wide), bits(back))) << to_string(sizes);
    there.mul_(2.0);
    EXPECT_TRUE(same_bits(bits(waiting.to(kFloat32)), bits(back))) << "changed since: " << to_string(sizes);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaNormChains, ::testing::Values(kFloat16, kBFloat16, kFloat32),
                         [](const auto& i) { return std::string(name(i.param)); });

}  // namespace
}  // namespace lockstep::testing
