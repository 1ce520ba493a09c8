#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

template <typename F>
OpCase shaped(const char* name, const Shape& sizes, F f) {
  return {name,
          [=] {
            return TensorList{make_leaf(sizes, 1), make_leaf(sizes, 2)};
          },
          [=](const TensorList& in) {
            // Further work, so that gradients come with layouts of their own.
            TensorList results;
            for (const Tensor& part : f(in[0] * 1.5, in[1])) results.push_back(part * part);
            return results;
          }};
}

const OpCase kCases[] = {
    shaped("view", {6, 8},
           [](const Tensor& a, const Tensor&) {
             return TensorList{a.view({4, -1})};
           }),
    shaped("flatten", {3, 4, 5}, [](const Tensor& a, const Tensor&) { return TensorList{a.flatten(1)}; }),
    shaped("reshape_of_a_transpose", {6, 8},
           [](const Tensor& a, const Tensor&) {
             return TensorList{a.t().reshape({3, 16})};
           }),
    shaped("permute", {3, 4, 5},
           [](const Tensor& a, const Tensor&) {
             return TensorList{a.permute({2, 0, 1}).contiguous()};
           }),
    shaped("transpose", {33, 70}, [](const Tensor& a, const Tensor& b) { return TensorList{a.t() * b.t()}; }),
    shaped("slice", {9, 20}, [](const Tensor& a, const Tensor&) { return TensorList{a.slice(1, 3, 17, 2)}; }),
    shaped("select", {4, 5, 6}, [](const Tensor& a, const Tensor&) { return TensorList{a.select(1, -2)}; }),
    shaped("expand", {5, 1},
           [](const Tensor& a, const Tensor&) {
             return TensorList{a.expand({3, 5, 40})};
           }),
    shaped("squeeze", {5, 1, 3},
           [](const Tensor& a, const Tensor&) {
             return TensorList{a.squeeze(1), a.unsqueeze(0)};
           }),
    shaped("cat_rows", {5, 7},
           [](const Tensor& a, const Tensor& b) {
             return TensorList{cat({a, b, a}, 0)};
           }),
    shaped("cat_columns", {5, 7},
           [](const Tensor& a, const Tensor& b) {
             return TensorList{cat({a, b}, 1)};
           }),
    shaped("stack", {5, 7},
           [](const Tensor& a, const Tensor& b) {
             return TensorList{stack({a, b}, 1)};
           }),
    shaped("split", {5, 7}, [](const Tensor& a, const Tensor&) { return split(a, 3, 1); }),
    shaped("chunk", {5, 7}, [](const Tensor& a, const Tensor&) { return chunk(a, 2, 0); }),
    shaped("casts", {5, 7},
           [](const Tensor& a, const Tensor&) {
             return TensorList{a.to(kFloat32), a.to(kFloat16).to(kFloat64), a.to(kBFloat16)};
           }),
    shaped("clone", {5, 7},
           [](const Tensor& a, const Tensor& b) {
             return TensorList{a.clone(), b.t().clone()};
           }),
    {"integer_casts",
     [] {
       return TensorList{make_input({9, 7}, 1, kFloat64, -4.0, 4.0), make_input({9, 7}, 1, kInt64, 0.0, 99.0),
                         make_input({9, 7}, 1, kBool, 0.0, 2.0)};
     },
     [](const TensorList& in) {
       return TensorList{in[0].to(kInt32), in[0].to(kBool),    in[1].to(kFloat16),
                         in[1].to(kUInt8), in[2].to(kFloat32), in[2].to(kInt64)};
     }},
    {"random", [] { return TensorList{make_leaf({3}, 1)}; },
     [](const TensorList& in) {
       const TensorOptions options{.dtype = in[0].dtype(), .device = in[0].device()};
       const Tensor strided = empty({7, 5}, options).t();
       fill_uniform(strided, -1.0, 2.0);
       return TensorList{rand({7, 13}, options), randn({7, 13}, options), strided, in[0] * 1.0,
                         randint(-3, 9, {50}, {.dtype = kInt64, .device = in[0].device()})};
     }},
    {"factories", [] { return TensorList{make_leaf({3}, 1)}; },
     [](const TensorList& in) {
       const TensorOptions options{.dtype = in[0].dtype(), .device = in[0].device()};
       return TensorList{zeros({3, 5}, options),
                         ones({3, 5}, options),
                         full({7}, -2.5, options),
                         full({7}, 3.0, {.dtype = kInt32, .device = in[0].device()}),
                         arange(9, {.dtype = kInt64, .device = in[0].device()}),
                         in[0] * 1.0};
     }},
};

class CudaShape : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaShape, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaShape, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
