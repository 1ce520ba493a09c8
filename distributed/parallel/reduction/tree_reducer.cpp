#include "lockstep/distributed/parallel/reduction/tree_reducer.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/collectives/tree_sum.h"
#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"

namespace lockstep::distributed {
namespace {

// The parts that lie inside one unit of the tree.
ShardRunner::Parts parts_inside(const ShardRunner::Parts& parts, const TreeNode& unit) {
  ShardRunner::Parts inside;
  for (std::size_t i = 0; i < parts.nodes.size(); ++i) {
    const TreeNode& node = parts.nodes[i];
    if (node.level > unit.level || node.index >> (unit.level - node.level) != unit.index) continue;
    inside.nodes.push_back(node);
    inside.tensors.push_back(parts.tensors[i]);
  }
  return inside;
}

// On a device, one addition after the other; the same roundings as tree_sum().
void sum_parts_on_device(const Tensor& target, const ShardRunner::Parts& parts, double divisor) {
  TreeStack<Tensor> stack;
  for (std::size_t i = 0; i < parts.nodes.size(); ++i)
    stack.push(parts.nodes[i], parts.tensors[i].detach().reshape({target.numel()}),
               [](Tensor& left, const Tensor& right) { left = add_values(left, right); });
  LOCKSTEP_CHECK(stack.entries().size() == 1, "[lockstep] {} parts leave {} nodes of the shard tree; expected one",
                 parts.nodes.size(), stack.entries().size());
  const Tensor sum = stack.entries().front().value;
  const NoGradGuard no_grad;
  copy_values(divisor == 1.0 ? sum : sum / divisor, target.as_strided({target.numel()}, {1}, target.offset()));
}

}  // namespace

void sum_parts(const Tensor& target, const ShardRunner::Parts& parts, double divisor) {
  if (target.device().is_cuda()) return sum_parts_on_device(target, parts, divisor);
  constexpr std::int64_t kBlock = 1 << 15;
  std::vector<const std::byte*> starts;
  for (const Tensor& tensor : parts.tensors) starts.push_back(static_cast<const std::byte*>(tensor.raw_data()));
  auto* const out = static_cast<std::byte*>(target.raw_data());
  const std::size_t element = element_size(target.dtype());
  parallel_for(target.numel(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t at = static_cast<std::size_t>(begin) * element;
    std::vector<const void*> blocks;
    for (const std::byte* start : starts) blocks.push_back(start + at);
    tree_sum(target.dtype(), out + at, blocks, parts.nodes, end - begin, divisor);
  });
}

TreeReducer::TreeReducer(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group, std::int64_t shards,
                         const ReducerOptions& options)
    : group_(std::move(group)),
      shards_(shards),
      units_(tree_units(shards_of_worker(shards, group_->world_size(), group_->rank()))) {
  std::vector<BucketItem> items;
  for (nn::NamedTensor& parameter : parameters) {
    items.push_back({parameter.tensor.nbytes(), parameter.tensor.dtype(), parameter.tensor.device()});
    slots_.push_back({std::move(parameter)});
  }
  for (const std::vector<std::size_t>& indices :
       assign_buckets(items, options.first_bucket_bytes, options.bucket_bytes)) {
    Bucket bucket;
    std::int64_t numel = 0;
    for (std::size_t index : indices) {
      slots_[index].bucket = buckets_.size();
      slots_[index].offset = numel;
      numel += slots_[index].parameter.tensor.numel();
    }
    const TensorOptions like = options_of(slots_[indices.front()].parameter.tensor);
    bucket.units = zeros({static_cast<std::int64_t>(units_.size()), numel}, like);
    bucket.sum = units_.size() == 1 ? bucket.units.as_strided({numel}, {1}, 0) : zeros({numel}, like);
    bucket.slots = indices;
    std::vector<std::string> names;
    for (std::size_t index : indices) names.push_back(slots_[index].parameter.name);
    bucket.label = bucket_label(buckets_.size(), names);
    buckets_.push_back(std::move(bucket));
  }
}

void TreeReducer::begin(const Tensor& divisor) {
  divisor_ = divisor;
  next_bucket_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.slots.size();
    bucket.work.reset();
  }
  trace_.first_gradient_ns = trace_.last_gradient_ns = steady_now_ns();
  trace_.finished_ns = 0;
  trace_.launched_ns.assign(buckets_.size(), 0);
}

void TreeReducer::add(std::size_t parameter, const ShardRunner::Parts& parts) {
  const Slot& slot = slots_[parameter];
  Bucket& own = buckets_[slot.bucket];
  const Tensor& like = slot.parameter.tensor;
  const std::int64_t row = own.sum.numel();
  for (std::size_t u = 0; u < units_.size(); ++u)
    sum_parts(own.units.as_strided({like.numel()}, {1}, static_cast<std::int64_t>(u) * row + slot.offset),
              parts_inside(parts, units_[u]));
  --own.pending;
  trace_.last_gradient_ns = steady_now_ns();
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0; ++next_bucket_) {
    Bucket& bucket = buckets_[next_bucket_];
    trace_.launched_ns[next_bucket_] = trace_.last_gradient_ns;
    const LabelScope label(bucket.label);
    bucket.work = group_->all_reduce_tree(bucket.sum, bucket.units, shards_, divisor_);
  }
}

void TreeReducer::finish() {
  LOCKSTEP_ASSERT(next_bucket_ == buckets_.size(), "a gradient is missing");
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
    bucket.sum.storage()->bump_version();
  }
  for (const Slot& slot : slots_) {
    const Tensor& like = slot.parameter.tensor;
    like.set_grad(buckets_[slot.bucket].sum.as_strided(like.sizes(), contiguous_strides(like.sizes()), slot.offset));
  }
  trace_.finished_ns = steady_now_ns();
}

}  // namespace lockstep::distributed
