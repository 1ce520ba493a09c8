#include "lockstep/core/shape.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;

TEST(Shape, HoldsUpToEightValues) {
  Shape shape{2, 3};
  shape.push_back(5);
  shape.insert(0, 7);
  EXPECT_EQ(shape, Shape({7, 2, 3, 5}));
  shape.erase(1);
  EXPECT_EQ(shape, Shape({7, 3, 5}));
  EXPECT_EQ(shape.numel(), 105);
  EXPECT_EQ(shape.back(), 5);
  EXPECT_EQ(to_string(shape), "[7, 3, 5]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(Shape({2, 0}).numel(), 0);
  EXPECT_NE(Shape({2}), Shape({2, 1}));
  EXPECT_EQ(Shape(std::vector<std::int64_t>{4, 5}), Shape({4, 5}));
  EXPECT_EQ(Shape::filled(3, 9), Shape({9, 9, 9}));
}

TEST(Shape, NineValuesAreAnError) {
  EXPECT_EQ(error_of([] { Shape({1, 2, 3, 4, 5, 6, 7, 8, 9}); }), "a shape has at most 8 dimensions; got 9");
  EXPECT_EQ(error_of([] { Shape::filled(8, 1).push_back(1); }), "a shape has at most 8 dimensions; got 9");
  EXPECT_EQ(error_of([] { Shape::filled(12, 1); }), "a shape has at most 8 dimensions; got 12");
}

TEST(Shape, ContiguousStridesAreRowMajor) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), Shape({12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Shape());
  EXPECT_EQ(contiguous_strides({2, 0, 4}), Shape({4, 4, 1}));
}

TEST(Shape, WrapDimCountsFromTheEnd) {
  EXPECT_EQ(wrap_dim(-1, 3, "op"), 2);
  EXPECT_EQ(wrap_dim(2, 3, "op"), 2);
  EXPECT_EQ(wrap_dim(-1, 0, "op"), 0);
  EXPECT_EQ(error_of([] { wrap_dim(3, 3, "op"); }),
            "[op] dimension 3 is out of range; expected -3 to 2 for 3 dimensions");
  EXPECT_NE(error_of([] { wrap_dim(-4, 3, "op"); }), "");
}

TEST(Shape, BroadcastingFollowsNumPy) {
  const struct {
    Shape a, b, result;
  } cases[] = {
      {{}, {}, {}},
      {{}, {3}, {3}},
      {{1}, {3}, {3}},
      {{4, 1}, {3}, {4, 3}},
      {{2, 1, 5}, {7, 1}, {2, 7, 5}},
      {{0}, {1}, {0}},
      {{2, 0}, {1}, {2, 0}},
      {{1, 3}, {0, 3}, {0, 3}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(broadcast_shapes(c.a, c.b, "op"), c.result);
    EXPECT_EQ(broadcast_shapes(c.b, c.a, "op"), c.result);
  }
  EXPECT_EQ(error_of([] {
              broadcast_shapes({2, 3}, {4, 3}, "add");
            }),
            "[add] shapes [2, 3] and [4, 3] do not broadcast: sizes 2 and 4 at dimension -2");
  EXPECT_NE(error_of([] { broadcast_shapes({0}, {3}, "add"); }), "");
}

TEST(Strides, OverlapIsFound) {
  EXPECT_FALSE(strides_may_overlap({2, 3}, {3, 1}));
  EXPECT_FALSE(strides_may_overlap({3, 2}, {1, 3}));
  EXPECT_FALSE(strides_may_overlap({2, 3, 4}, {100, 1, 5}));
  EXPECT_FALSE(strides_may_overlap({1, 3}, {0, 2}));
  EXPECT_FALSE(strides_may_overlap({0, 3}, {0, 0}));
  EXPECT_TRUE(strides_may_overlap({2, 3}, {0, 1}));
  EXPECT_TRUE(strides_may_overlap({3, 3}, {1, 1}));
  EXPECT_TRUE(strides_may_overlap({2, 3}, {2, 1}));
}

}  // namespace
}  // namespace lockstep
