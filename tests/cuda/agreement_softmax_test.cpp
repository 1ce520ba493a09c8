#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

std::function<TensorList()> leaf(const Shape& sizes) {
  return [=] { return TensorList{make_leaf(sizes, 1, kFloat64, -4.0, 4.0)}; };
}

// Slices of a warp, of a block, too long for registers, and across memory.
OpCase softmax_along(const char* name, const Shape& sizes, int dim) {
  return {name, leaf(sizes), [=](const TensorList& in) {
            return TensorList{in[0].softmax(dim), in[0].log_softmax(dim)};
          }};
}

OpCase layer_norm_of(const char* name, const Shape& sizes, const Shape& normalized, bool weight, bool bias) {
  return {
      name,
      [=] {
        return TensorList{make_leaf(sizes, 1, kFloat64, -4.0, 4.0), make_leaf(normalized, 2, kFloat64, 0.5, 1.5),
                          make_leaf(normalized, 3)};
      },
      [=](const TensorList& in) {
        return TensorList{layer_norm(
            in[0], normalized, {.weight = weight ? in[1] : Tensor(), .bias = bias ? in[2] : Tensor(), .eps = 1e-3})};
      }};
}

const OpCase kCases[] = {
    softmax_along("softmax_classes", {33, 10}, 1),
    softmax_along("softmax_of_a_warp", {9, 255}, -1),
    softmax_along("softmax_of_a_block", {5, 1000}, -1),
    softmax_along("softmax_beyond_registers", {3, 5003}, -1),
    softmax_along("softmax_first", {37, 45}, 0),
    softmax_along("softmax_middle", {3, 11, 29}, 1),
    softmax_along("softmax_one", {7, 1}, 1),
    softmax_along("softmax_vector", {300}, 0),
    softmax_along("softmax_scalar", {}, 0),
    softmax_along("softmax_empty", {0, 5}, 1),
    {"softmax_masked",
     [] {
       return TensorList{make_leaf({6, 40}, 1), make_input({6, 40}, 2, kInt64, 0.0, 2.0) == 1};
     },
     [](const TensorList& in) { return TensorList{where(in[1], in[0], -INFINITY).softmax(1)}; }},
    layer_norm_of("layer_norm", {9, 37}, {37}, true, true),
    layer_norm_of("layer_norm_plain", {9, 37}, {37}, false, false),
    layer_norm_of("layer_norm_weight", {9, 37}, {37}, true, false),
    layer_norm_of("layer_norm_bias", {9, 37}, {37}, false, true),
    layer_norm_of("layer_norm_of_a_block", {5, 700}, {700}, true, true),
    layer_norm_of("layer_norm_beyond_registers", {3, 5003}, {5003}, true, true),
    layer_norm_of("layer_norm_many_rows", {7, 100, 20}, {20}, true, true),
    layer_norm_of("layer_norm_two_dimensions", {7, 5, 6}, {5, 6}, true, true),
    layer_norm_of("layer_norm_no_rows", {0, 6}, {6}, true, true),
    layer_norm_of("layer_norm_no_width", {3, 0}, {0}, true, true),
};

class CudaSoftmax : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaSoftmax, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaSoftmax, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
