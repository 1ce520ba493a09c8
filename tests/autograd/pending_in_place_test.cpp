// x += y where x is still to be computed (Note [Pending values]): whoever sees x sees the sum, and nobody else does.

#include <gtest/gtest.h>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/pending_values.h"

namespace lockstep {
namespace {

using testing::bits;
using testing::error_of;
using testing::is_pending;
using testing::make_input;
using testing::make_leaf;
using testing::same_bits;

struct Block {
  Tensor x = make_leaf({4, 6, 9, 8}, 1, kFloat32), weight = make_leaf({6, 6, 3, 3}, 2, kFloat32);
  Tensor scale = make_leaf({6}, 3, kFloat32);

  Tensor normed() const {
    return batch_norm(conv2d(x, weight, {}, {.padding = 1}), {}, {}, {.weight = scale, .training = true});
  }
  std::vector<std::vector<float>> outcome(const Tensor& y) const {
    for (const Tensor* leaf : {&x, &weight, &scale}) leaf->set_grad({});
    sum(y * make_input(y.sizes(), 5, kFloat32)).backward();
    return {bits(y), bits(x.grad()), bits(weight.grad()), bits(scale.grad())};
  }
};

TEST(PendingInPlace, ASumInPlaceIsJoinedLikeAnother) {
  const Block block;
  Tensor y = block.normed();
  const Tensor same = y;
  y += block.x;
  EXPECT_TRUE(is_pending(y));
  EXPECT_TRUE(is_pending(same));
  y = relu(y);
  EXPECT_TRUE(is_pending(y));
  const auto found = block.outcome(y), expected = block.outcome(relu(block.normed() + block.x));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
  EXPECT_TRUE(same_bits(bits(same), bits(block.normed() + block.x))) << "another name of the same tensor";
}

TEST(PendingInPlace, WhoSharesTheMemorySeesTheSum) {
  const Block block;
  const NoGradGuard guard;
  const std::vector<float> expected = bits(block.normed() + block.x);
  const Tensor y = block.normed(), detached = y.detach();
  y += block.x;
  EXPECT_TRUE(same_bits(bits(detached), expected));
  const Tensor z = block.normed(), flat = z.view({-1});
  z.add_(block.x);
  EXPECT_TRUE(same_bits(bits(flat), expected));
  const Tensor before = block.normed(), rectified = relu(before);
  const std::vector<float> old = bits(relu(block.normed()));
  before += block.x;
  EXPECT_TRUE(same_bits(bits(rectified), old)) << "a result made before counts its operand as it was";
  const Tensor doubled = block.normed();
  doubled += doubled;
  EXPECT_TRUE(same_bits(bits(doubled), bits(block.normed() * 2.0)));
}

TEST(PendingInPlace, WhatMayNotBeChangedStaysAnError) {
  const Block block;
  const Tensor saved = block.normed(), square = saved * saved;
  saved += block.x;
  EXPECT_NE(error_of([&] { square.sum().backward(); }).find("[MulBackward]"), std::string::npos);
  const Tensor result = relu(block.normed());
  EXPECT_NE(error_of([&] { result += block.x; }).find("[+=]"), std::string::npos);
  const Tensor leaf = [&] {
    const NoGradGuard guard;
    return block.normed();
  }();
  leaf.requires_grad_();
  EXPECT_NE(error_of([&] { leaf += block.x; }).find("[+=]"), std::string::npos);
  const Tensor wrong = block.normed();
  EXPECT_NE(error_of([&] { wrong += make_input({3}, 1, kFloat32); }).find("[+=]"), std::string::npos);
}

TEST(PendingInPlace, WhoComparesVersionsSeesAChange) {
  const NoGradGuard guard;
  const Block block;
  const Tensor y = block.normed();
  const std::uint32_t before = y.storage()->version();
  y += block.x;
  EXPECT_GT(y.storage()->version(), before);
}

// Several in a row, into what waits for a product.
TEST(PendingInPlace, ChainsOfSums) {
  const Tensor x = make_leaf({40, 24}, 1, kFloat32), weight = make_leaf({24, 24}, 2, kFloat32);
  const auto run = [&](bool in_place) {
    x.set_grad({}), weight.set_grad({});
    Tensor y = linear(x, weight);
    for (int i = 0; i < 9; ++i) {
      if (in_place)
        y += x;
      else
        y = y + x;
    }
    sum(relu(y)).backward();
    return std::vector{bits(y), bits(x.grad()), bits(weight.grad())};
  };
  const auto found = run(true), expected = run(false);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
}

}  // namespace
}  // namespace lockstep
