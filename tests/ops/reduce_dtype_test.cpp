// Reductions with a dtype of their own.

#include "lockstep/autograd/ops/reduce/reduce.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

TEST(ReduceDtype, IsCastToFirst) {
  const Tensor x = make_leaf({3, 4}, 1, kFloat32);
  expect_close(sum(x, {1}, false, kFloat64), sum(cast_values(x, kFloat64), {1}), 0, 0);
  x.mean({}, false, kFloat64).backward();
  EXPECT_EQ(x.grad().dtype(), kFloat32);
  expect_close(x.grad(), full({3, 4}, 1.0 / 12));
}

TEST(ReduceDtype, OfIntegers) {
  const Tensor bytes = full({3}, 100, {.dtype = kUInt8});
  EXPECT_EQ(sum(bytes, {}, false, kUInt8).item(), 44.0);  // wraps
  EXPECT_EQ(bytes.sum({}, false, kInt32).dtype(), kInt32);
  EXPECT_EQ(bytes.mean({}, false, kFloat32).item(), 100.0);
  EXPECT_EQ(logsumexp(zeros({2}, {.dtype = kInt64}), {0}).dtype(), kFloat32);
}

}  // namespace
}  // namespace lockstep::testing
