#include "lockstep/autograd/ops/view/view.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class Expand : public ::testing::TestWithParam<ViewCase> {};
TEST_P(Expand, ValuesSharingAndGradients) {
  check_view_case(GetParam());
}

const ViewCase kCases[] = {
    {"Row",
     {1, 3},
     [](const Tensor& x) {
       return x.expand({2, 3});
     },
     {2, 3},
     {0, 1, 2, 0, 1, 2}},
    {"Column",
     {2, 1},
     [](const Tensor& x) {
       return x.expand({-1, 3});
     },
     {2, 3},
     {0, 0, 0, 1, 1, 1}},
    {"NewLeading",
     {2},
     [](const Tensor& x) {
       return x.expand({2, 1, 2});
     },
     {2, 1, 2},
     {0, 1, 0, 1}},
    {"Both",
     {1, 2, 1},
     [](const Tensor& x) {
       return x.expand({2, 1, 2, 2});
     },
     {2, 1, 2, 2},
     {0, 0, 1, 1, 0, 0, 1, 1}},
    {"Same",
     {2, 2},
     [](const Tensor& x) {
       return x.expand({2, 2});
     },
     {2, 2},
     {0, 1, 2, 3}},
    {"Scalar", {}, [](const Tensor& x) { return x.expand({3}); }, {3}, {0, 0, 0}},
    {"As",
     {1},
     [](const Tensor& x) {
       return expand_as(x, zeros({1, 2}));
     },
     {1, 2},
     {0, 0}},
};
INSTANTIATE_TEST_SUITE_P(Ops, Expand, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(ExpandOp, Empty) {
  const Tensor x = make_leaf({1, 3});
  const Tensor none = x.expand({0, 3});
  EXPECT_EQ(to_string(none.sizes()), "[0, 3]");
  none.backward(zeros({0, 3}, {.dtype = kFloat64}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, 0}));
}

TEST(ExpandOp, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of([&] { x.expand({3}); }),
            "[expand] shape [2, 3] has more dimensions than [3]; give at least 2 sizes");
  EXPECT_EQ(error_of([&] {
              x.expand({4, 3});
            }),
            "[expand] shape [2, 3] cannot become [4, 3]: size 2 at dimension 0 is neither 4 nor 1");
  EXPECT_EQ(error_of([&] {
              x.expand({-1, 2, 3});
            }),
            "[expand] size -1 of [-1, 2, 3] is not allowed; -1 keeps a dimension that exists");
}

}  // namespace
}  // namespace lockstep::testing
