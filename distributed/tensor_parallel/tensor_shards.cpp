#include "lockstep/distributed/tensor_parallel/tensor_shards.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/distributed/operation/operation.h"

namespace lockstep::distributed {

TensorShards::TensorShards(ProcessGroupPtr group, std::int64_t logical)
    : group_(std::move(group)), lockstep_(logical > 0) {
  LOCKSTEP_CHECK(group_, "[TensorParallel] the process group is null");
  const int world = group_->world_size();
  if (lockstep_) {
    check_shards(logical, world, "TensorParallel");
    LOCKSTEP_CHECK(
        logical % world == 0,
        "[TensorParallel] {} tensor shards cannot be divided evenly over {} ranks; use a number of ranks that "
        "divides them",
        logical, world);
  }
  count_ = lockstep_ ? logical : world;
  mine_ = shards_of_worker(count_, world, group_->rank());
}

Tensor TensorShards::sum(std::vector<Tensor> parts) const {
  const NoGradGuard values_only;
  TreeStack<Tensor> stack;
  for (std::size_t i = 0; i < parts.size(); ++i)
    stack.push({0, mine_.begin + static_cast<std::int64_t>(i)}, std::move(parts[i]),
               [](Tensor& left, const Tensor& right) { left = add(left, right); });
  LOCKSTEP_ASSERT(stack.entries().size() == 1, "{} shards leave {} sums", mine_.size(), stack.entries().size());
  return sum_over_ranks(stack.entries().front().value);
}

Tensor TensorShards::sum_of_one(const Tensor& own) const {
  const NoGradGuard values_only;
  // As in the tree's sums, -0 becomes +0 where a shard without the value is added.
  return sum_over_ranks(mine_.size() > 1 ? add(own, 0.0) : own);
}

Tensor TensorShards::sum_over_ranks(Tensor own) const {
  if (group_->world_size() == 1) return own;
  static const OperationLabel label("sum over tensor shards");
  const LabelScope scope(label);
  if (lockstep_)
    group_->all_reduce_tree(own, own, count_)->wait();
  else
    group_->all_reduce(own)->wait();
  return own;
}

void TensorShards::max(const Tensor& values) const {
  if (group_->world_size() == 1) return;
  static const OperationLabel label("largest of tensor shards");
  const LabelScope scope(label);
  group_->all_reduce(values, ReduceOp::max)->wait();
}

}  // namespace lockstep::distributed
