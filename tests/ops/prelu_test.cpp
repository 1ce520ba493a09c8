#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/unary/unary.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  const char* name;
  Shape x, weight;
};
class Prelu : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Ops, Prelu,
                         ::testing::Values(Case{"one", {3, 5}, {1}}, Case{"number", {7}, {}},
                                           Case{"channels", {2, 3, 5}, {3}}, Case{"rows", {4, 33}, {33}},
                                           Case{"none", {0, 3}, {3}}, Case{"images", {2, 3, 5, 7}, {3}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Prelu, ValuesAndGradients) {
  const Case& c = GetParam();
  check_op({.name = "",
            .inputs =
                [&] {
                  return TensorList{make_leaf(c.x), make_leaf(c.weight, 2)};
                },
            .run = [](const TensorList& in) { return TensorList{prelu(in[0], in[1])}; },
            .expected =
                [&](const TensorList& in) {
                  const Tensor out = copy_contiguous(in[0].detach());
                  const std::vector<double> weight = in[1].to_vector<double>();
                  const std::int64_t channels = in[1].numel(),
                                     inner = channels == 1 ? 1 : out.numel() / (c.x[0] * channels + (c.x[0] == 0));
                  for (std::int64_t i = 0; i < out.numel(); ++i)
                    if (double& value = out.data<double>()[i]; value < 0)
                      value *= weight[static_cast<std::size_t>(i / inner % channels)];
                  return TensorList{out};
                }});
}

TEST(PreluThreads, DoNotChangeBits) {
  check_threads({.name = "",
                 .inputs =
                     [] {
                       return TensorList{make_leaf({4, 3, 5000}), make_leaf({3}, 2)};
                     },
                 .run = [](const TensorList& in) { return TensorList{prelu(in[0], in[1])}; }});
}

// As PyTorch: what is not above 0, NaN among it, goes by the weight; above 0 the weight gets nothing of any gradient.
TEST(PreluEdges, NanAndInfinity) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = tensor<double>({NAN, infinity, -infinity, 0.0, -0.0, 2.0}), weight = tensor<double>({0.5});
  x.set_requires_grad(true);
  weight.set_requires_grad(true);
  const Tensor out = prelu(x, weight);
  expect_close(out, tensor<double>({NAN, infinity, -infinity, 0.0, -0.0, 2.0}), 0, 0);
  out.narrow(0, 1, 5).backward(tensor<double>({infinity, 0, 1, 1, infinity}));
  expect_close(x.grad(), tensor<double>({0, infinity, 0, 0.5, 0.5, infinity}), 0, 0);
  EXPECT_TRUE(std::isnan(weight.grad().item()));  // 0 times x = -infinity
}

TEST(PreluErrors, NameTheProblem) {
  EXPECT_NE(error_of([] { prelu(ones({2, 3}), ones({2})); }).find("[prelu] expected 2 channels"), std::string::npos);
  EXPECT_NE(error_of([] { prelu(ones({2}), ones({1, 1})); }).find("a weight of one dimension"), std::string::npos);
  EXPECT_NE(error_of([] { prelu(ones({2}), arange(1)); }).find("a floating-point weight, found int64"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
