#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using Inputs = std::function<TensorList()>;

Inputs leaves(const Shape& a, const Shape& b, double low = -2.0, double high = 2.0) {
  return [=] { return TensorList{make_leaf(a, 1, kFloat64, low, high), make_leaf(b, 2, kFloat64, low, high)}; };
}
Inputs integers(const Shape& a, const Shape& b, DType dtype_a = kInt64, DType dtype_b = kInt64) {
  return [=] { return TensorList{make_input(a, 1, dtype_a, 0.0, 6.0), make_input(b, 2, dtype_b, 0.0, 6.0)}; };
}
/// Values of which many are equal.
Inputs ties(const Shape& a, const Shape& b) {
  return [=] {
    TensorList made{cast_values(make_input(a, 1, kInt64, -2.0, 3.0), kFloat64),
                    cast_values(make_input(b, 2, kInt64, -2.0, 3.0), kFloat64)};
    for (Tensor& t : made) t.set_requires_grad(true);
    return made;
  };
}
Inputs mask_and(const Shape& condition, const Shape& a, const Shape& b) {
  return [=] { return TensorList{make_input(condition, 3, kInt64, 0.0, 2.0) == 1, make_leaf(a, 1), make_leaf(b, 2)}; };
}

template <typename F>
OpCase binary(const char* name, Inputs inputs, F f) {
  return {name, std::move(inputs), [=](const TensorList& in) { return TensorList{f(in[0], in[1])}; }};
}

const auto kAdd = [](const Tensor& a, const Tensor& b) { return a + b; };
const auto kMul = [](const Tensor& a, const Tensor& b) { return a * b; };
const auto kDiv = [](const Tensor& a, const Tensor& b) { return a / b; };
const Shape kOdd = {7, 37}, kLarge = {3, 40001};

const OpCase kCases[] = {
    binary("add", leaves(kOdd, kOdd), kAdd),
    binary("add_large", leaves(kLarge, kLarge), kAdd),
    binary("add_empty", leaves({0, 3}, {0, 3}), kAdd),
    binary("add_scalars", leaves({}, {}), kAdd),
    binary("add_row", leaves(kOdd, {37}), kAdd),
    binary("add_column", leaves(kOdd, {7, 1}), kAdd),
    binary("add_outer", leaves({5, 1, 3}, {4, 1}), kAdd),
    binary("add_bias_of_images", leaves({3, 5, 6, 7}, {5, 1, 1}), kAdd),
    binary("add_alpha", leaves(kOdd, kOdd), [](const Tensor& a, const Tensor& b) { return add(a, b, 0.25); }),
    binary("sub", leaves(kOdd, {37}), [](const Tensor& a, const Tensor& b) { return sub(a, b, 1.5); }),
    binary("mul", leaves(kOdd, kOdd), kMul),
    binary("mul_row", leaves(kOdd, {1, 37}), kMul),
    binary("mul_large_by_one", leaves(kLarge, {1}), kMul),
    binary("div", leaves(kOdd, kOdd, 0.5, 2.0), kDiv),
    binary("div_row", leaves(kOdd, {37}, 0.5, 2.0), kDiv),
    binary("atan2", leaves(kOdd, {37}), [](const Tensor& a, const Tensor& b) { return atan2(a, b); }),
    binary("hypot", leaves(kOdd, {37}), [](const Tensor& a, const Tensor& b) { return hypot(a, b); }),
    binary("fmod", leaves(kOdd, {37}, 0.5, 2.0), [](const Tensor& a, const Tensor& b) { return fmod(a, b); }),
    binary("maximum", ties(kOdd, kOdd), [](const Tensor& a, const Tensor& b) { return maximum(a, b); }),
    binary("minimum", ties(kOdd, {37}), [](const Tensor& a, const Tensor& b) { return minimum(a, b); }),
    binary("prelu", leaves(kOdd, {37}), [](const Tensor& a, const Tensor& b) { return prelu(a, b); }),
    binary("prelu_one_weight", leaves(kLarge, {1}), [](const Tensor& a, const Tensor& b) { return prelu(a, b); }),
    {"clamp_tensors",
     [] {
       return TensorList{make_leaf(kOdd, 1), make_leaf({37}, 2, kFloat64, -1.0, 0.0),
                         make_leaf({37}, 3, kFloat64, 0.0, 1.0)};
     },
     [](const TensorList& in) { return TensorList{clamp(in[0], in[1], in[2])}; }},
    binary("div_integers_rounded", integers(kOdd, {37}),
           [](const Tensor& a, const Tensor& b) { return div(a - 3, b + 1, RoundingMode::floor); }),
    binary("pow", leaves(kOdd, kOdd, 0.5, 2.0), [](const Tensor& a, const Tensor& b) { return pow(a, b); }),
    binary("numbers", leaves(kOdd, kOdd, 0.5, 2.0),
           [](const Tensor& a, const Tensor& b) {
             return (2.0 - a * 3.0) / 1.5 + (1.0 / b - 0.5) * 2 - (b + 1) + pow(1.5, b);
           }),
    binary("one_operand_twice", leaves(kOdd, kOdd), [](const Tensor& a, const Tensor& b) { return a * a + b * a; }),
    {"views", leaves({6, 9}, {6, 9}),
     [](const TensorList& in) { return TensorList{in[0].t().slice(1, 1, 5) * in[1].slice(0, 2, 6).t()}; }},
    // The packs' 16 bytes are missed by one element.
    {"unaligned", leaves({1001}, {1001}),
     [](const TensorList& in) { return TensorList{in[0].slice(0, 1, 1001) + in[1].slice(0, 0, 1000)}; }},
    {"in_place", leaves(kOdd, {37}, 0.5, 2.0),
     [](const TensorList& in) {
       Tensor x = in[0] * 1.0;
       x += in[1];
       x *= in[1];
       x -= in[1];
       x /= in[1];
       x += 2.0;
       x *= 0.5;
       x /= 3.0;
       x *= x;
       return TensorList{x};
     }},
    {"integers", integers(kOdd, kOdd),
     [](const TensorList& in) {
       const Tensor &a = in[0], &b = in[1];
       return TensorList{a + b, a - b, a * b, a / (b + 1), pow(a, b), maximum(a, b), minimum(a, b), a * 2 - 1};
     }},
    {"bits", integers(kOdd, {37}),
     [](const TensorList& in) {
       const Tensor &a = in[0], &b = in[1];
       return TensorList{a & b, a | b, a ^ b, ~a, a << b, (a - 3) >> b, b & 5, (a > 2) ^ (b > 2)};
     }},
    binary("copysign", leaves(kOdd, {37}), [](const Tensor& a, const Tensor& b) { return copysign(a, b); }),
    {"promotion",
     [] {
       return TensorList{make_input(kOdd, 1, kInt32, 0.0, 6.0), make_input(kOdd, 2, kUInt8, 0.0, 6.0),
                         make_input(kOdd, 3, kBool, 0.0, 2.0), make_leaf(kOdd, 4)};
     },
     [](const TensorList& in) {
       return TensorList{in[0] + in[1], in[1] * in[2], in[0] * 2.5, in[2] + in[2], in[3] * in[0], in[3] + in[2]};
     }},
    {"comparisons", ties(kOdd, {37}),
     [](const TensorList& in) {
       const Tensor &a = in[0], &b = in[1];
       return TensorList{a == b, a != b, a<b, a <= b, a> b, a >= b, a < 1.0, 1.0 <= a, eq(a, 2)};
     }},
    {"comparisons_of_integers", integers(kOdd, kOdd, kInt64, kUInt8),
     [](const TensorList& in) {
       return TensorList{in[0] == in[1], in[0] < in[1], in[1] >= 3, in[0] != 2};
     }},
    {"where", mask_and(kOdd, kOdd, kOdd), [](const TensorList& in) { return TensorList{where(in[0], in[1], in[2])}; }},
    {"where_broadcast", mask_and({37}, kOdd, {7, 1}),
     [](const TensorList&
            in) { return TensorList{where(in[0], in[1], in[2]), where(in[0], in[1], 2.0), where(in[0], -1, in[2])}; }},
    {"where_large", mask_and(kLarge, kLarge, {1}),
     [](const TensorList& in) { return TensorList{where(in[0], in[1], in[2])}; }},
};

class CudaBinary : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaBinary, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaBinary, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
