// What is said to be a copy has memory of its own, whatever there was to copy.

#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using indexing::Slice;

TEST(OwnMemory, RepeatedElementsAreCopies) {
  const Tensor x = tensor<float>({1, 2, 3});
  for (const Tensor& out :
       {x.repeat({1}), x.repeat({4, 1}), x.repeat({1, 1}), x.view({1, 3}).repeat({3, 1}), tile(x, {2, 1}),
        repeat_interleave(x, 1, 0), repeat_interleave(x.view({1, 3}), 3, 0), repeat_interleave(x.view({3, 1}), 2, 1)}) {
    EXPECT_NE(out.storage(), x.storage()) << to_string(out.sizes());
    const Tensor before = out.clone();
    x.add_(1);
    EXPECT_TRUE(equal(out, before)) << to_string(out.sizes());
    if (out.numel() < 2) continue;
    const Tensor flat = out.view({-1});  // element by element
    flat[0].fill_(100);
    EXPECT_EQ(sum(flat == 100.0).item<double>(), 1) << to_string(out.sizes());
    x.sub_(1);
  }
}

TEST(OwnMemory, SoDoRearrangementsThatHaveNothingToDo) {
  const Tensor x = randn({1, 4, 2, 2});
  for (const Tensor& out : {pad(x, {0, 0}, PadMode::reflect), pad(x, {0, 0}, PadMode::replicate), pixel_shuffle(x, 1),
                            pixel_unshuffle(x, 1), diff(x, 0)}) {
    EXPECT_NE(out.storage(), x.storage());
    EXPECT_TRUE(equal(out, x));
  }
}

TEST(OwnMemory, IndicesGiveContiguousResults) {
  const Tensor x = randn({8, 4}), at = tensor<std::int64_t>({0, 2});
  for (const Tensor& out : {x.index({Slice(), at}), x.index({"...", at}), x.index({at})})
    EXPECT_TRUE(out.is_contiguous()) << to_string(out.sizes());
  EXPECT_TRUE(equal(x.index({Slice(), at}), x.index_select(1, at)));
}

}  // namespace
}  // namespace lockstep::testing
