#include "lockstep/autograd/ops/view/view.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class Permute : public ::testing::TestWithParam<ViewCase> {};
TEST_P(Permute, ValuesSharingAndGradients) {
  check_view_case(GetParam());
}

const ViewCase kCases[] = {
    {"T", {2, 3}, [](const Tensor& x) { return x.t(); }, {3, 2}, {0, 3, 1, 4, 2, 5}},
    {"TOfVector", {3}, [](const Tensor& x) { return x.t(); }, {3}, {0, 1, 2}},
    {"TOfScalar", {}, [](const Tensor& x) { return x.t(); }, {}, {0}},
    {"Transpose", {1, 2, 3}, [](const Tensor& x) { return transpose(x, -1, 1); }, {1, 3, 2}, {0, 3, 1, 4, 2, 5}},
    {"TransposeSame", {2, 2}, [](const Tensor& x) { return x.transpose(1, 1); }, {2, 2}, {0, 1, 2, 3}},
    {"Permute",
     {2, 2, 2},
     [](const Tensor& x) {
       return permute(x, {2, 0, 1});
     },
     {2, 2, 2},
     {0, 2, 4, 6, 1, 3, 5, 7}},
    {"PermuteOdd",
     {3, 1, 2},
     [](const Tensor& x) {
       return x.permute({-1, 0, 1});
     },
     {2, 3, 1},
     {0, 2, 4, 1, 3, 5}},
    {"PermuteScalar", {}, [](const Tensor& x) { return x.permute({}); }, {}, {0}},
};
INSTANTIATE_TEST_SUITE_P(Ops, Permute, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(PermuteOp, Empty) {
  EXPECT_EQ(to_string(zeros({0, 2, 3}).permute({2, 0, 1}).sizes()), "[3, 0, 2]");
}

TEST(PermuteOp, Errors) {
  const Tensor x = zeros({2, 3, 4});
  EXPECT_EQ(error_of([&] {
              x.permute({0, 1});
            }),
            "[permute] 2 dimensions given for a tensor of shape [2, 3, 4]; name each one once");
  EXPECT_EQ(error_of([&] {
              x.permute({0, 1, -2});
            }),
            "[permute] dimension 1 occurs twice in [0, 1, -2]; name each one once");
  EXPECT_NE(error_of([&] { x.permute({0, 1, 3}); }).find("[permute] dimension 3 is out of range"), std::string::npos);
  EXPECT_NE(error_of([&] { x.transpose(0, -4); }).find("[transpose] dimension -4 is out of range"), std::string::npos);
  EXPECT_EQ(error_of([&] { x.t(); }),
            "[t] expected at most 2 dimensions, found shape [2, 3, 4]; use transpose() or permute()");
}

}  // namespace
}  // namespace lockstep::testing
