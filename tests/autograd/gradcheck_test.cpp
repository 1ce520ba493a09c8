#include "lockstep/autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/autograd/ops.h"
#include "tests/support/probe_node.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using namespace testing;
using Inputs = std::vector<Tensor>;

TEST(Gradcheck, AcceptsARightGradient) {
  gradcheck([](const Inputs& in) { return in[0] * in[1] + in[0].exp(); }, {make_leaf({2, 3}, 1), make_leaf({3}, 2)});
  gradcheck([](const Inputs& in) { return probe({in[0]}, 2.0); }, {make_leaf({4})});
}

TEST(Gradcheck, FindsAGradientThatIsWrong) {
  for (const double wrong : {2.01, -2.0, 1e-9}) {
    const std::string message = error_of(
        [&] { gradcheck([&](const Inputs& in) { return probe({in[0]}, 2.0, {}, wrong); }, {make_leaf({4})}); });
    EXPECT_EQ(message.find("[gradcheck] input 0, element 0: backward gives "), 0u) << message;
    EXPECT_NE(message.find("central differences give "), std::string::npos) << message;
  }
}

TEST(Gradcheck, FindsOneWrongElementOfOneInput) {
  // x * x with the last element's factor taken from a detached copy: its gradient comes out halved.
  const auto function = [](const Inputs& in) {
    Tensor mask = ones({3}, {.dtype = kFloat64});
    mask.data<double>()[2] = 0;
    const Tensor rest = 1.0 - mask;
    return in[0] + in[1] * (in[1] * mask + in[1].detach() * rest);
  };
  const Tensor second = make_leaf({3}, 2, kFloat64, 1, 2);
  const std::string message = error_of([&] { gradcheck(function, {make_leaf({3}, 1), second}); });
  EXPECT_EQ(message.find("[gradcheck] input 1, element 2:"), 0u) << message;
}

TEST(Gradcheck, FindsAMissingGradient) {
  const auto function = [](const Inputs& in) { return in[0] + in[1].detach(); };
  EXPECT_NE(error_of([&] {
              gradcheck(function, {make_leaf({2}, 1), make_leaf({2}, 2)});
            }).find("backward gives 0"),
            std::string::npos);
}

TEST(Gradcheck, FindsAFiniteGradientWhereDifferencesAreInfinite) {
  const Tensor x = ones({1}, {.dtype = kFloat64});
  x.set_requires_grad(true);
  const auto function = [](const Inputs& in) {
    const Tensor out = probe({in[0]});
    if (in[0].data<double>()[0] > 1.0) out.data<double>()[0] = std::numeric_limits<double>::infinity();
    return out;
  };
  EXPECT_NE(error_of([&] { gradcheck(function, {x}); }).find("backward gives "), std::string::npos);
}

TEST(Gradcheck, FindsGradientsThatSwappedPlaces) {
  // Weights differ by element, so a gradient that lands on its neighbour shows.
  const auto function = [](const Inputs& in) {
    const Tensor x = in[0];
    const Tensor out = zeros({2}, {.dtype = kFloat64});
    out.data<double>()[0] = x.data<double>()[1];
    out.data<double>()[1] = x.data<double>()[0];
    record<ProbeBackward>(out, {&x});
    return out;
  };
  EXPECT_NE(error_of([&] { gradcheck(function, {make_leaf({2})}); }).find("[gradcheck]"), std::string::npos);
}

TEST(Gradcheck, LeavesValuesAndGradientsAsTheyWere) {
  const Tensor x = make_leaf({2, 3}), strided = make_strided(make_input({2, 3}, 2));
  strided.set_requires_grad(true);
  const Tensor grad = make_input({2, 3}, 3);
  x.set_grad(grad);
  const std::vector<double> before = x.to_vector<double>(), strided_before = strided.to_vector<double>();
  gradcheck([](const Inputs& in) { return in[0] * in[1]; }, {x, strided});
  EXPECT_EQ(x.to_vector<double>(), before);
  EXPECT_EQ(strided.to_vector<double>(), strided_before);
  EXPECT_TRUE(x.grad().is_same(grad));
  EXPECT_FALSE(strided.grad().defined());
}

TEST(Gradcheck, InputsWithoutGradientsAreLeftOut) {
  const Tensor labels = tensor<std::int64_t>({1, 0});
  gradcheck([](const Inputs& in) { return in[0] * in[1]; }, {make_leaf({2}), make_input({2}, 2)});
  gradcheck([](const Inputs& in) { return in[0].index_select(0, in[1]); }, {make_leaf({2}), labels});
}

TEST(Gradcheck, WrongUseIsAnError) {
  const auto identity = [](const Inputs& in) { return in[0] * 1.0; };
  EXPECT_NE(error_of([&] { gradcheck(identity, {make_leaf({2}, 1, kFloat32)}); }).find("must be a float64 leaf"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { gradcheck(identity, {make_input({2})}); }), "[gradcheck] no input requires gradients");
  EXPECT_NE(error_of([&] {
              gradcheck([](const Inputs& in) { return in[0].to(kFloat32); }, {make_leaf({2})});
            }).find("must return float64"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
