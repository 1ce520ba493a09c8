#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using Inputs = std::function<TensorList()>;

Inputs leaf(const Shape& sizes, double low = -1.0, double high = 1.0) {
  return [=] { return TensorList{make_leaf(sizes, 1, kFloat64, low, high)}; };
}
Inputs integers(const Shape& sizes, DType dtype) {
  return [=] { return TensorList{make_input(sizes, 1, dtype, 0.0, 6.0)}; };
}
/// Whole numbers, so that many are equal.
Inputs ties(const Shape& sizes) {
  return [=] {
    Tensor made = cast_values(make_input(sizes, 1, kInt64, -3.0, 4.0), kFloat64);
    made.set_requires_grad(true);
    return TensorList{made};
  };
}
/// A NaN and both infinities among ordinary values.
Inputs special(const Shape& sizes) {
  return [=] {
    Tensor made = make_input(sizes, 1);
    double* data = made.data<double>();
    data[5] = std::nan("");
    data[made.numel() - 2] = INFINITY;
    data[made.numel() / 2] = -INFINITY;
    return TensorList{made};
  };
}

template <typename F>
OpCase reduce(const char* name, Inputs inputs, F f) {
  return {name, std::move(inputs), [=](const TensorList& in) { return TensorList{f(in[0])}; }};
}

// Terms that lie together, in a warp or a block; outputs that lie together; several segments; several dimensions.
const OpCase kCases[] = {
    reduce("sum_all", leaf({7, 37}), [](const Tensor& x) { return x.sum(); }),
    reduce("sum_all_large", leaf({3, 70001}), [](const Tensor& x) { return x.sum(); }),
    reduce("sum_of_packs", leaf({2, 40960}), [](const Tensor& x) { return x.sum(); }),
    reduce("sum_rows", leaf({9, 37}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_long_rows", leaf({5, 3000}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_long_rows_of_packs", leaf({5, 4096}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_many_short_rows", leaf({500, 3}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_columns", leaf({37, 9}), [](const Tensor& x) { return x.sum({0}); }),
    reduce("sum_long_columns", leaf({5000, 5}), [](const Tensor& x) { return x.sum({0}); }),
    reduce("sum_many_columns", leaf({70, 300}), [](const Tensor& x) { return x.sum({0}, true); }),
    reduce("sum_few_terms", leaf({3, 700}), [](const Tensor& x) { return x.sum({0}); }),
    reduce("sum_middle", leaf({3, 50, 7}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_outer_and_inner", leaf({6, 5, 40}),
           [](const Tensor& x) {
             return x.sum({0, 2});
           }),
    reduce("sum_of_images", leaf({4, 3, 20, 21}),
           [](const Tensor& x) {
             return x.sum({0, 2, 3}, true);
           }),
    reduce("sum_one_term", leaf({4, 1, 5}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_no_terms", leaf({4, 0}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_no_outputs", leaf({0, 4}), [](const Tensor& x) { return x.sum({1}); }),
    reduce("sum_scalar", leaf({}), [](const Tensor& x) { return x.sum(); }),
    reduce("sum_integers", integers({7, 100}, kInt32), [](const Tensor& x) { return x.sum({0}); }),
    reduce("sum_bool", integers({7, 100}, kBool), [](const Tensor& x) { return x.sum(); }),
    reduce("mean", leaf({9, 37}), [](const Tensor& x) { return x.mean({-1}, true); }),
    reduce("mean_all", leaf({3, 7001}), [](const Tensor& x) { return x.mean(); }),
    reduce("var", leaf({9, 37}), [](const Tensor& x) { return x.var({1}); }),
    reduce("var_columns", leaf({4000, 3}), [](const Tensor& x) { return x.var({0}, 0.0, true); }),
    reduce("var_all", leaf({3, 7001}), [](const Tensor& x) { return x.var(); }),
    reduce("max", ties({9, 37}), [](const Tensor& x) { return x.max({1}); }),
    reduce("max_columns", ties({60, 300}), [](const Tensor& x) { return x.max({0}, true); }),
    reduce("max_all", leaf({3, 7001}), [](const Tensor& x) { return x.max(); }),
    reduce("min", ties({9, 3, 37}),
           [](const Tensor& x) {
             return x.min({0, 2});
           }),
    reduce("max_integers", integers({7, 100}, kUInt8), [](const Tensor& x) { return x.max({1}); }),
    reduce("max_special", special({7, 100}), [](const Tensor& x) { return x.max({1}); }),
    reduce("min_special", special({7, 100}), [](const Tensor& x) { return x.min({0}); }),
    reduce("logsumexp", leaf({9, 37}, -5.0, 5.0), [](const Tensor& x) { return x.logsumexp({1}); }),
    reduce("logsumexp_columns", leaf({3000, 4}, -5.0, 5.0), [](const Tensor& x) { return x.logsumexp({0}, true); }),
    reduce("logsumexp_special", special({7, 100}), [](const Tensor& x) { return x.logsumexp({1}); }),
    reduce("argmax", ties({9, 37}), [](const Tensor& x) { return argmax(x, 1); }),
    reduce("argmax_long", ties({3, 2000}), [](const Tensor& x) { return argmax(x, 1, true); }),
    reduce("argmax_columns", ties({60, 300}), [](const Tensor& x) { return argmax(x, 0); }),
    reduce("argmax_middle", ties({3, 50, 7}), [](const Tensor& x) { return argmax(x, 1); }),
    reduce("argmax_of_all", ties({9, 37}), [](const Tensor& x) { return argmax(x); }),
    reduce("argmin", ties({9, 10}), [](const Tensor& x) { return argmin(x, 1); }),
    reduce("argmin_integers", integers({9, 100}, kInt32), [](const Tensor& x) { return argmin(x, 1); }),
    reduce("argmax_special", special({7, 100}), [](const Tensor& x) { return argmax(x, 1); }),
    reduce("all", integers({9, 37}, kBool), [](const Tensor& x) { return all(x, {1}); }),
    reduce("any", leaf({9, 37}), [](const Tensor& x) { return any(x > 0.99, {0}); }),
    reduce("any_of_none", leaf({9, 0}), [](const Tensor& x) { return any(x, {1}); }),
};

class CudaReduce : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaReduce, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaReduce, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
