// Reductions of many tensors at once, under the names that PyTorch's tests have for them
// (torch/testing/_internal/distributed/distributed_test.py); docs/pytorch.md has the whole list. Values are PyTorch's:
// rank 0 has 2, every other rank 10.

#include <cmath>

#include "lockstep/distributed/process_group/coalesced.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

enum class Who { job, full_group, group };  // of 4 ranks, of all of them, of the last three

double reduced(ReduceOp op, int world) {
  switch (op) {
    case ReduceOp::product:
      return 2 * std::pow(10, world - 1);
    case ReduceOp::min:
      return 2;
    case ReduceOp::max:
      return 10;
    default:
      return 2 + 10 * (world - 1);
  }
}

void expect_coalesced(Who who, ReduceOp op) {
  run_on({4, Link::shm}, [&](const ProcessGroupPtr& job) {
    ProcessGroupPtr group = job;
    if (who != Who::job) group = job->split(who == Who::group && job->rank() == 0 ? -1 : 0);
    if (group) {
      const double value = group->rank() == 0 ? 2 : 10;
      std::vector<Tensor> tensors;
      for (const DType dtype : {kFloat32, kInt32, kFloat64}) {
        tensors.push_back(full({2, 3}, value, {.dtype = dtype}));
        tensors.push_back(full({0}, value, {.dtype = dtype}));
        tensors.push_back(full({3, 4}, value, {.dtype = dtype}).transpose(0, 1));  // not contiguous
      }
      all_reduce_coalesced(tensors, *group, op, /*buffer_bytes=*/60);  // some together, some by themselves
      const double expected = reduced(op, group->world_size());
      for (const Tensor& tensor : tensors)
        EXPECT_EQ(tensor.numel() == 0 ? expected : tensor.max().item<double>(), expected);
      for (const Tensor& tensor : tensors)
        EXPECT_EQ(tensor.numel() == 0 ? expected : tensor.min().item<double>(), expected);
    }
    job->barrier()->wait();
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
