#include <limits>

#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/view/view.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class Slice : public ::testing::TestWithParam<ViewCase> {};
TEST_P(Slice, ValuesSharingAndGradients) {
  check_view_case(GetParam());
}

constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
const ViewCase kCases[] = {
    {"Slice", {5}, [](const Tensor& x) { return x.slice(0, 1, 4); }, {3}, {1, 2, 3}},
    {"SliceStep", {7}, [](const Tensor& x) { return x.slice(0, 1, 7, 3); }, {2}, {1, 4}},
    {"SliceStepShort", {7}, [](const Tensor& x) { return x.slice(0, 0, 7, 2); }, {4}, {0, 2, 4, 6}},
    {"SliceHugeStep", {3}, [](const Tensor& x) { return x.slice(0, 1, kEnd, kEnd); }, {1}, {1}},
    {"SliceNegative", {5}, [](const Tensor& x) { return x.slice(0, -3, -1); }, {2}, {2, 3}},
    {"SliceClamped", {3}, [](const Tensor& x) { return x.slice(0, -9, 9); }, {3}, {0, 1, 2}},
    {"SliceToEnd", {3}, [](const Tensor& x) { return x.slice(0, 1, kEnd); }, {2}, {1, 2}},
    {"SliceInner", {2, 4}, [](const Tensor& x) { return x.slice(-1, 1, 4, 2); }, {2, 2}, {1, 3, 5, 7}},
    {"SliceOfSlice", {3, 3}, [](const Tensor& x) { return x.slice(0, 1, 3).slice(1, 0, 2); }, {2, 2}, {3, 4, 6, 7}},
    {"Narrow", {2, 3}, [](const Tensor& x) { return narrow(x, 1, 1, 2); }, {2, 2}, {1, 2, 4, 5}},
    {"NarrowNegative", {4}, [](const Tensor& x) { return x.narrow(0, -2, 1); }, {1}, {2}},
    {"Select", {2, 3}, [](const Tensor& x) { return select(x, 1, 2); }, {2}, {2, 5}},
    {"SelectNegative", {2, 3}, [](const Tensor& x) { return x.select(0, -1); }, {3}, {3, 4, 5}},
    {"Brackets", {2, 3}, [](const Tensor& x) { return x[1][2]; }, {}, {5}},
};
INSTANTIATE_TEST_SUITE_P(Ops, Slice, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(SliceOp, Empty) {
  const Tensor x = make_leaf({3, 2});
  for (const Tensor& none : {x.slice(0, 2, 1), x.slice(0, 3, 3), x.narrow(0, 3, 0), x.slice(0, 9, 12, 4)}) {
    EXPECT_EQ(to_string(none.sizes()), "[0, 2]");
    none.backward(zeros({0, 2}, {.dtype = kFloat64}));
  }
  EXPECT_EQ(x.grad().to_vector<double>(), std::vector<double>(6, 0.0));
  EXPECT_EQ(to_string(zeros({0, 2}).slice(0, 0, 5).sizes()), "[0, 2]");
  EXPECT_EQ(to_string(zeros({0, 2}).select(1, 1).sizes()), "[0]");
}

TEST(SliceOp, OverlappingPartsAddTheirGradients) {
  gradcheck(
      [](const std::vector<Tensor>& in) {
        return cat({in[0].slice(0, 0, 3), in[0].slice(0, 1, 4)});
      },
      {make_leaf({4})});
}

TEST(SliceOp, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of([&] { x.slice(0, 0, 2, 0); }), "[slice] step must be at least 1, found 0");
  EXPECT_NE(error_of([&] { x.slice(2, 0, 1); }).find("[slice] dimension 2 is out of range"), std::string::npos);
  EXPECT_EQ(error_of([&] { x.narrow(1, 2, 2); }),
            "[narrow] start 2 and length 2 do not lie in dimension 1 of size 3 (shape [2, 3])");
  EXPECT_EQ(error_of([&] { x.narrow(1, 0, -1); }),
            "[narrow] start 0 and length -1 do not lie in dimension 1 of size 3 (shape [2, 3])");
  EXPECT_EQ(error_of([&] { x.select(0, 2); }),
            "[select] index 2 is out of range for dimension 0 of shape [2, 3]; expected -2 to 1");
  EXPECT_EQ(error_of([&] { zeros({}).select(0, 0); }),
            "[select] a tensor without dimensions has no part; expected at least one dimension");
}

}  // namespace
}  // namespace lockstep::testing
