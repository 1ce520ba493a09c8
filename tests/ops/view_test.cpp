#include "lockstep/autograd/ops/view/view.h"

#include "lockstep/autograd/ops/binary/binary.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class View : public ::testing::TestWithParam<ViewCase> {};
TEST_P(View, ValuesSharingAndGradients) {
  check_view_case(GetParam());
}

const std::vector<double> kSix{0, 1, 2, 3, 4, 5};
const ViewCase kCases[] = {
    {"Reshape",
     {2, 3},
     [](const Tensor& x) {
       return reshape(x, {3, 2});
     },
     {3, 2},
     kSix},
    {"ReshapeInferred",
     {2, 3},
     [](const Tensor& x) {
       return x.reshape({-1, 2});
     },
     {3, 2},
     kSix},
    {"ReshapeSame",
     {2, 3},
     [](const Tensor& x) {
       return x.reshape({2, 3});
     },
     {2, 3},
     kSix},
    {"ReshapeSplit",
     {6},
     [](const Tensor& x) {
       return x.reshape({1, 2, 1, 3, 1});
     },
     {1, 2, 1, 3, 1},
     kSix},
    {"ReshapeToScalar", {1, 1}, [](const Tensor& x) { return x.reshape({}); }, {}, {0}},
    {"ReshapeFromScalar",
     {},
     [](const Tensor& x) {
       return x.reshape({1, 1});
     },
     {1, 1},
     {0}},
    {"ReshapeTransposed", {2, 3}, [](const Tensor& x) { return x.t().reshape({6}); }, {6}, {0, 3, 1, 4, 2, 5}, false},
    {"FlattenAll", {1, 2, 3}, [](const Tensor& x) { return flatten(x); }, {6}, kSix},
    {"FlattenFrom1", {2, 1, 3}, [](const Tensor& x) { return flatten(x, 1); }, {2, 3}, kSix},
    {"FlattenMiddle", {1, 2, 3, 1}, [](const Tensor& x) { return x.flatten(1, -2); }, {1, 6, 1}, kSix},
    {"FlattenScalar", {}, [](const Tensor& x) { return flatten(x); }, {1}, {0}},
};
INSTANTIATE_TEST_SUITE_P(Ops, View, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(ViewOp, SharesMemoryBothWays) {
  const Tensor x = zeros({2, 3}, {.dtype = kFloat64});
  const Tensor y = x.view({3, 2});
  EXPECT_EQ(y.storage(), x.storage());
  x.data<double>()[5] = 7;
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{0, 0, 0, 0, 0, 7}));
}

TEST(ViewOp, SplitsAndMergesStridedDimensions) {
  // Rows of 4 out of rows of 10: the last dimension can be split, the two cannot be merged.
  const Tensor x = arange(30.0, 60.0, 1.0, {.dtype = kFloat64}).as_strided({3, 4}, {10, 1}, 2);
  EXPECT_EQ(to_string(x.view({3, 2, 2}).strides()), "[10, 2, 1]");
  EXPECT_EQ(x.view({3, 1, 4, 1}).to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(error_of([&] { x.view({12}); }),
            "[view] shape [3, 4] with strides [10, 1] cannot be viewed as [12] without a copy; use reshape()");
  EXPECT_EQ(x.reshape({12}).to_vector<double>(), x.to_vector<double>());
  const Tensor repeated = x.as_strided({3, 4}, {0, 0}, 0);
  EXPECT_EQ(to_string(repeated.view({12}).strides()), "[0]");
}

TEST(ViewOp, GradientOfAStridedView) {
  Tensor x = make_strided(make_input({2, 3, 4}));
  x.set_requires_grad(true);
  gradcheck([](const std::vector<Tensor>& in) { return in[0].view({1, 2, 3, 2, 2}); }, {x});
}

TEST(ViewOp, Empty) {
  const Tensor x = zeros({0, 3});
  EXPECT_EQ(to_string(x.view({3, 0}).sizes()), "[3, 0]");
  EXPECT_EQ(to_string(x.view({-1, 3}).sizes()), "[0, 3]");
  EXPECT_EQ(to_string(flatten(x).sizes()), "[0]");
}

TEST(ViewOp, RecordsNothingWithoutNeed) {
  EXPECT_FALSE(make_input({2, 3}).view({6}).requires_grad());
  EXPECT_TRUE(make_leaf({2, 3}).view({6}).requires_grad());
}

TEST(ViewOp, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of([&] { x.view({4}); }), "[view] shape [2, 3] has 6 elements and cannot become [4] with 4");
  EXPECT_EQ(error_of([&] { x.reshape({-1, -1}); }), "[reshape] only one size of [-1, -1] may be -1");
  EXPECT_EQ(error_of([&] {
              x.reshape({-2, 3});
            }),
            "[reshape] size -2 of [-2, 3] is negative; only -1 (compute it) may be");
  EXPECT_EQ(error_of([&] {
              x.view({-1, 4});
            }),
            "[view] cannot compute the -1 in [-1, 4]: 6 elements of shape [2, 3] do not divide by 4");
  EXPECT_EQ(error_of([&] {
              zeros({0, 3}).view({-1, 0});
            }),
            "[view] cannot compute the -1 in [-1, 0]: 0 elements of shape [0, 3] do not divide by 0");
  EXPECT_EQ(error_of([&] {
              x.view({1L << 40, 1L << 40});
            }),
            "[view] [1099511627776, 1099511627776] has too many elements");
  EXPECT_EQ(error_of([&] { x.flatten(1, 0); }), "[flatten] start_dim 1 comes after end_dim 0 for shape [2, 3]");
  EXPECT_NE(error_of([&] { x.flatten(2); }).find("[flatten] dimension 2 is out of range"), std::string::npos);
}

TEST(Reshape, ToTheSameSizesIsATensorOfItsOwn) {
  const Tensor x = ones({2}).requires_grad_(), y = x * 1.0, z = y.reshape({2});
  EXPECT_EQ(z.data<float>(), y.data<float>());
  z.register_hook([](const Tensor& grad) { return grad * 10.0; });
  (y + z).sum().backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{11, 11}));
  const Tensor plain = ones({2});
  plain.reshape({-1}).requires_grad_();
  EXPECT_FALSE(plain.requires_grad());
}

}  // namespace
}  // namespace lockstep::testing
