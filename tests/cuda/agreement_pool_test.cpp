#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

OpCase pool(const char* name, Shape sizes, std::function<Tensor(const Tensor&)> f) {
  return {name, [=] { return TensorList{make_leaf(sizes, 1)}; },
          [=](const TensorList& in) { return TensorList{f(in[0])}; }};
}
/// Of what has NaNs among it, of values alone.
OpCase pool_of_roots(const char* name, Size2d kernel, MaxPool2dOptions options = {}) {
  OpCase made =
      pool(name, {2, 2, 6, 6}, [=](const Tensor& x) { return max_pool2d(x.detach().sqrt(), kernel, options); });
  made.constant = true;
  return made;
}
OpCase max_pool(const char* name, Shape sizes, Size2d kernel, MaxPool2dOptions options = {}) {
  return pool(name, sizes, [=](const Tensor& x) { return max_pool2d(x, kernel, options); });
}
OpCase avg_pool(const char* name, Shape sizes, Size2d kernel, AvgPool2dOptions options = {}) {
  return pool(name, sizes, [=](const Tensor& x) { return avg_pool2d(x, kernel, options); });
}
OpCase adaptive(const char* name, Shape sizes, Size2d output) {
  return pool(name, sizes, [=](const Tensor& x) { return adaptive_avg_pool2d(x, output); });
}

const OpCase kCases[] = {
    max_pool("max_even", {3, 5, 12, 14}, 2),
    max_pool("max_odd", {2, 3, 7, 9}, 2),
    max_pool("max_odd_width", {2, 3, 8, 9}, 2),
    max_pool("max_no_batch", {3, 6, 6}, 2),
    max_pool("max_large", {40, 11, 24, 24}, 2),
    max_pool("max_overlap", {2, 3, 9, 8}, 3, {.stride = 1, .padding = 1}),
    max_pool("max_stride", {2, 3, 11, 10}, 3, {.stride = 2}),
    max_pool("max_uneven", {2, 2, 9, 11}, {3, 2}, {.stride = {2, 3}, .padding = {1, 0}}),
    max_pool("max_dilation", {2, 2, 11, 9}, 3, {.stride = 1, .padding = 1, .dilation = 2}),
    max_pool("max_ceil", {2, 3, 7, 8}, 3, {.stride = 2, .ceil_mode = true}),
    max_pool("max_window_of_300", {1, 2, 21, 33}, {15, 20}, {.stride = 3}),
    max_pool("max_empty", {0, 3, 4, 4}, 2),
    pool("max_ties", {2, 2, 6, 6}, [](const Tensor& x) { return max_pool2d(x.clamp(-0.2, 0.2), 3, {.stride = 1}); }),
    pool("max_ties_by_two", {2, 2, 6, 6}, [](const Tensor& x) { return max_pool2d(x.clamp(-0.2, 0.2), 2); }),
    pool_of_roots("max_nan", 3, {.stride = 1}),
    pool_of_roots("max_nan_by_two", 2),
    avg_pool("avg_even", {3, 5, 12, 14}, 2),
    avg_pool("avg_large", {20, 11, 24, 24}, 3, {.stride = 1}),
    avg_pool("avg_padding", {2, 3, 9, 8}, 3, {.stride = 2, .padding = 1}),
    avg_pool("avg_without_padding", {2, 3, 9, 8}, 3, {.stride = 2, .padding = 1, .count_include_pad = false}),
    avg_pool("avg_ceil", {2, 3, 8, 9}, {3, 2}, {.stride = {2, 3}, .padding = {1, 1}, .ceil_mode = true}),
    avg_pool("avg_divisor", {2, 3, 7, 7}, 3, {.padding = 1, .divisor_override = 5}),
    avg_pool("avg_no_batch", {3, 6, 5}, 2),
    avg_pool("avg_empty", {0, 3, 4, 4}, 2),
    adaptive("adaptive_one", {3, 7, 13, 9}, 1),
    adaptive("adaptive_uneven", {2, 3, 11, 7}, {4, 3}),
    adaptive("adaptive_larger", {2, 3, 3, 4}, {5, 7}),
    adaptive("adaptive_same", {2, 3, 5, 5}, 5),
    adaptive("adaptive_large", {70, 9, 16, 16}, {2, 1}),
    adaptive("adaptive_no_batch", {3, 12, 12}, {2, 3}),
    adaptive("adaptive_empty", {0, 3, 4, 4}, 2),
};

class CudaPool : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaPool, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaPool, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
