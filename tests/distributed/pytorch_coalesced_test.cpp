// Reductions of many tensors at once, under the names that PyTorch's tests have for them
// (torch/testing/_internal/distributed/distributed_test.py); docs/pytorch.md has the whole list.

#include "lockstep/distributed/process_group/coalesced.h"
#include "tests/distributed/pytorch_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

void expect_coalesced(Who who, ReduceOp op) {
  run_as(who, [&](ProcessGroup& group) {
    const double value = group.rank() == 0 ? 2 : 10;
    std::vector<Tensor> tensors;
    for (const DType dtype : {kFloat32, kInt32, kFloat64}) {
      tensors.push_back(full({2, 3}, value, {.dtype = dtype}));
      tensors.push_back(full({0}, value, {.dtype = dtype}));
      tensors.push_back(full({3, 4}, value, {.dtype = dtype}).as_strided({4, 3}, {1, 4}, 0));  // not contiguous
    }
    all_reduce_coalesced(tensors, group, op, /*buffer_bytes=*/60);  // some together, some by themselves
    for (const Tensor& tensor : tensors)
      expect_values(
          tensor, [&](auto) { return reduced(op, group.world_size()); }, "all_reduce_coalesced");
  });
}

#define LOCKSTEP_REDUCTIONS(op)                                 \
  TEST(DistributedTest, all_reduce_coalesced_##op) {            \
    expect_coalesced(Who::job, ReduceOp::op);                   \
  }                                                             \
  TEST(DistributedTest, all_reduce_coalesced_full_group_##op) { \
    expect_coalesced(Who::full_group, ReduceOp::op);            \
  }                                                             \
  TEST(DistributedTest, all_reduce_coalesced_group_##op) {      \
    expect_coalesced(Who::group, ReduceOp::op);                 \
  }
LOCKSTEP_REDUCTIONS(sum)
LOCKSTEP_REDUCTIONS(product)
LOCKSTEP_REDUCTIONS(min)
LOCKSTEP_REDUCTIONS(max)
#undef LOCKSTEP_REDUCTIONS

}  // namespace
}  // namespace lockstep::distributed
