#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

TensorList one(const Shape& sizes, double low = -1.0, double high = 1.0) {
  return {make_leaf(sizes, 1, kFloat64, low, high)};
}

OpCase unary(const char* name, Tensor (*f)(const Tensor&), double low = -2.0, double high = 2.0) {
  // Odd sizes leave a rest beside the 16-byte packs.
  return {name, [=] { return one({7, 37}, low, high); }, [=](const TensorList& in) { return TensorList{f(in[0])}; }};
}

const OpCase kCases[] = {
    unary("neg", [](const Tensor& x) { return -x; }),
    unary("abs", [](const Tensor& x) { return x.abs(); }),
    unary("relu", [](const Tensor& x) { return x.relu(); }),
    unary("clamp", [](const Tensor& x) { return x.clamp(-0.5, 0.7); }),
    unary("exp", [](const Tensor& x) { return x.exp(); }),
    unary(
        "log", [](const Tensor& x) { return x.log(); }, 0.1, 3.0),
    unary(
        "sqrt", [](const Tensor& x) { return x.sqrt(); }, 0.1, 3.0),
    unary(
        "rsqrt", [](const Tensor& x) { return x.rsqrt(); }, 0.1, 3.0),
    unary("pow", [](const Tensor& x) { return x.pow(3.0); }),
    unary("tanh", [](const Tensor& x) { return x.tanh(); }),
    unary("sigmoid", [](const Tensor& x) { return x.sigmoid(); }),
    unary("gelu", [](const Tensor& x) { return gelu(x); }),
    unary(
        "erfc", [](const Tensor& x) { return erfc(x); }, -3.0, 8.0),
    unary("silu", [](const Tensor& x) { return silu(x); }),
    unary("frac", [](const Tensor& x) { return frac(x); }),
    unary("nan_to_num", [](const Tensor& x) { return nan_to_num(x.pow(-1.0), 1.0, 2.0, 3.0); }),
    unary(
        "lgamma", [](const Tensor& x) { return lgamma(x); }, 2.5, 13.0),
    {"relu_large",
     [] {
       return one({3, 70001});
     },
     [](const TensorList& in) { return TensorList{in[0].relu()}; }},
    {"relu_empty",
     [] {
       return one({0, 3});
     },
     [](const TensorList& in) { return TensorList{in[0].relu()}; }},
};

class CudaElementwise : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaElementwise, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaElementwise, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
