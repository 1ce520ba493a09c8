#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Norm {
  const char* name;
  Shape sizes;
  bool training = true;
  bool affine = true;
  bool running = true;
  double offset = 0.0;  ///< added to the input: variances must survive a large mean
};

OpCase batch_norm_case(const Norm& c) {
  const auto inputs = [=] {
    const std::int64_t channels = c.sizes[1];
    return TensorList{make_leaf(c.sizes, 1, kFloat64, c.offset - 1.0, c.offset + 1.0), make_leaf({channels}, 2),
                      make_leaf({channels}, 3), make_input({channels}, 4),
                      make_input({channels}, 5, kFloat64, 0.5, 2.0)};
  };
  const auto run = [=](const TensorList& in) {
    BatchNormOptions options{.training = c.training};
    if (c.affine) options.weight = in[1], options.bias = in[2];
    // Training writes into the running statistics.
    const Tensor mean = copy_contiguous(in[3]), var = copy_contiguous(in[4]);
    const Tensor y = c.running ? batch_norm(in[0], mean, var, options) : batch_norm(in[0], {}, {}, options);
    return TensorList{y, mean, var};
  };
  return {
      .name = c.name, .inputs = inputs, .run = run, .slack = c.offset != 0.0 ? 100.0 : 2.0, .halves = c.offset == 0.0};
}

const OpCase kCases[] = {
    batch_norm_case({"batch_norm", {4, 6, 8, 8}}),
    batch_norm_case({"batch_norm_odd", {3, 5, 7, 9}}),
    batch_norm_case({"batch_norm_large", {70, 3, 12, 13}}),
    batch_norm_case({"batch_norm_large_packed", {70, 3, 16, 16}}),
    batch_norm_case({"batch_norm_rows", {37, 24}}),
    batch_norm_case({"batch_norm_rows_odd", {300, 45}}),
    batch_norm_case({"batch_norm_one_sample", {1, 3, 5, 5}}),
    batch_norm_case({"batch_norm_3d", {2, 4, 10}}),
    batch_norm_case({"batch_norm_large_mean", {9, 3, 24, 24}, true, true, true, 1000.0}),
    batch_norm_case({"batch_norm_rows_large_mean", {400, 5}, true, true, true, 1000.0}),
    batch_norm_case({"batch_norm_plain", {6, 4, 6, 6}, true, false}),
    batch_norm_case({"batch_norm_no_running", {6, 4, 6, 6}, true, true, false}),
    batch_norm_case({"batch_norm_eval", {6, 4, 6, 6}, false}),
    batch_norm_case({"batch_norm_eval_rows", {33, 7}, false}),
    batch_norm_case({"batch_norm_eval_plain", {6, 4, 6, 7}, false, false}),
    batch_norm_case({"batch_norm_empty", {0, 4, 3, 3}}),
    batch_norm_case({"batch_norm_eval_empty", {0, 4, 3, 3}, false}),
};

class CudaNorm : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaNorm, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaNorm, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace lockstep::testing
