#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/cuda/gemm.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

OpCase product(const char* name, const Shape& a, const Shape& b) {
  return {name,
          [=] {
            return TensorList{make_leaf(a, 1, kFloat64), make_leaf(b, 2, kFloat64)};
          },
          [](const TensorList& in) { return TensorList{matmul(in[0], in[1])}; }};
}

OpCase linear_case(const char* name, const Shape& x, std::int64_t outputs, bool bias, bool with_relu) {
  return {name,
          [=] {
            TensorList inputs{make_leaf(x, 1, kFloat64), make_leaf({outputs, x[x.dim() - 1]}, 2, kFloat64)};
            if (bias) inputs.push_back(make_leaf({outputs}, 3, kFloat64));
            return inputs;
          },
          [=](const TensorList& in) {
            const Tensor b = bias ? in[2] : Tensor();
            return TensorList{with_relu ? linear(in[0], in[1], b).relu() : linear(in[0], in[1], b)};
          },
          // A value that is 0 but for rounding may pass relu on one side only.
          1.0, true, !with_relu};
}

const OpCase kCases[] = {
    product("matmul", {5, 7}, {7, 3}),
    product("matmul_one_row", {1, 9}, {9, 4}),
    product("matmul_one_column", {6, 9}, {9, 1}),
    product("matmul_inner_one", {6, 1}, {1, 5}),
    product("matmul_large", {70, 130}, {130, 65}),
    {"matmul_of_integers",
     [] {
       return TensorList{make_input({2, 5, 7}, 1, kInt64, -9.0, 9.0), make_input({7, 3}, 2, kInt64, -9.0, 9.0)};
     },
     [](const TensorList& in) {
       return TensorList{matmul(in[0], in[1]), matmul(in[0].to(kInt32), in[1].to(kInt32)), matmul(in[1].t(), in[1])};
     }},
    product("dot", {11}, {11}),
    product("vector_matrix", {7}, {7, 3}),
    product("matrix_vector", {5, 7}, {7}),
    product("batched", {4, 5, 7}, {4, 7, 3}),
    product("batched_twice", {2, 3, 5, 7}, {2, 3, 7, 2}),
    product("tall", {4, 5, 7}, {7, 3}),
    product("matrix_batched", {5, 7}, {4, 7, 3}),
    product("broadcast_inner", {2, 1, 5, 7}, {2, 3, 7, 2}),
    product("broadcast_both", {2, 1, 5, 7}, {3, 7, 2}),
    product("broadcast_vector", {3, 5, 7}, {7}),
    product("matmul_empty", {0, 7}, {7, 3}),
    product("matmul_empty_inner", {5, 0}, {0, 3}),
    linear_case("linear", {6, 7}, 5, true, false),
    linear_case("linear_no_bias", {6, 7}, 5, false, false),
    linear_case("linear_relu", {6, 7}, 5, true, true),
    linear_case("linear_relu_no_bias", {6, 7}, 5, false, true),
    linear_case("linear_one_dimension", {7}, 5, true, false),
    linear_case("linear_three_dimensions", {3, 2, 7}, 65, true, true),
    // Bias gradients over several chunks of rows, and over more than one strip of columns.
    linear_case("linear_many_rows", {1100, 3}, 37, true, false),
    linear_case("linear_no_rows", {0, 7}, 5, true, false),
    linear_case("linear_no_inputs", {4, 0}, 5, true, true),
};

class CudaProduct : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaProduct, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaProduct, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
