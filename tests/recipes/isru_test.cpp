// The member that CONTRIBUTING.md's recipe adds to the unary family.

#include "lockstep/autograd/ops/unary/unary.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

TEST(Isru, ValuesAndGradients) {
  check_op({.name = "",
            .inputs =
                [] {
                  return TensorList{make_leaf({3, 40}, 1, kFloat64, -3, 3)};
                },
            .run = [](const TensorList& in) { return TensorList{isru(in[0])}; },
            .expected =
                [](const TensorList& in) {
                  const Tensor out = copy_contiguous(in[0].detach());
                  for (std::int64_t i = 0; i < out.numel(); ++i)
                    out.data<double>()[i] /= std::sqrt(1.0 + out.data<double>()[i] * out.data<double>()[i]);
                  return TensorList{out};
                }});
}

}  // namespace
}  // namespace lockstep::testing
