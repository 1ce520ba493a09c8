#include "lockstep/autograd/ops/view/view.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class Squeeze : public ::testing::TestWithParam<ViewCase> {};
TEST_P(Squeeze, ValuesSharingAndGradients) {
  check_view_case(GetParam());
}

const ViewCase kCases[] = {
    {"All", {1, 2, 1}, [](const Tensor& x) { return squeeze(x); }, {2}, {0, 1}},
    {"AllToScalar", {1, 1}, [](const Tensor& x) { return x.squeeze(); }, {}, {0}},
    {"One", {1, 2, 1}, [](const Tensor& x) { return squeeze(x, -1); }, {1, 2}, {0, 1}},
    {"OneNotOfSize1", {1, 2}, [](const Tensor& x) { return x.squeeze(1); }, {1, 2}, {0, 1}},
    {"OneOfScalar", {}, [](const Tensor& x) { return x.squeeze(0); }, {}, {0}},
    {"Several",
     {1, 2, 1, 1},
     [](const Tensor& x) {
       return squeeze(x, {0, 1, -1});
     },
     {2, 1},
     {0, 1}},
    {"UnsqueezeFirst", {2}, [](const Tensor& x) { return unsqueeze(x, 0); }, {1, 2}, {0, 1}},
    {"UnsqueezeLast", {2}, [](const Tensor& x) { return x.unsqueeze(-1); }, {2, 1}, {0, 1}},
    {"UnsqueezeMiddle", {2, 2}, [](const Tensor& x) { return x.unsqueeze(1); }, {2, 1, 2}, {0, 1, 2, 3}},
    {"UnsqueezeScalar", {}, [](const Tensor& x) { return x.unsqueeze(-1); }, {1}, {0}},
};
INSTANTIATE_TEST_SUITE_P(Ops, Squeeze, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(SqueezeOp, SharesMemoryWithAnyLayout) {
  const Tensor x = make_strided(make_input({2, 1, 3}));
  EXPECT_EQ(x.squeeze(1).storage(), x.storage());
  EXPECT_EQ(x.unsqueeze(2).storage(), x.storage());
}

TEST(SqueezeOp, Empty) {
  EXPECT_EQ(to_string(zeros({0, 1}).squeeze().sizes()), "[0]");
  EXPECT_EQ(to_string(zeros({0}).unsqueeze(0).sizes()), "[1, 0]");
}

TEST(SqueezeOp, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_NE(error_of([&] { x.squeeze(2); }).find("[squeeze] dimension 2 is out of range"), std::string::npos);
  EXPECT_EQ(error_of([&] {
              x.view({1, 1, 1, 1, 1, 1, 2, 3}).unsqueeze(0);
            }),
            "[unsqueeze] the result would have 9 dimensions; expected at most 8");
  EXPECT_NE(error_of([&] { x.unsqueeze(-4); }).find("[unsqueeze] dimension -4 is out of range"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
