#include "lockstep/distributed/parallel/coalesced.h"

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"

namespace lockstep::distributed {
namespace {

// Calls operate(flat) on the tensors' values, packed where they are more than one or not contiguous. `reads`: what is
// in them counts; `writes`: what is there afterwards does.
template <typename Operate>
void for_each_packed(const std::vector<Tensor>& tensors, bool reads, bool writes, const Operate& operate) {
  std::vector<BucketItem> items;
  for (const Tensor& tensor : tensors) items.push_back({tensor.nbytes(), tensor.dtype(), tensor.device()});
  for (const std::vector<std::size_t>& indices : assign_buckets(items, kCoalescedBytes, kCoalescedBytes)) {
    const Tensor& first = tensors[indices.front()];
    const bool in_place = indices.size() == 1 && first.is_contiguous();
    std::int64_t numel = 0;
    for (const std::size_t index : indices) numel += tensors[index].numel();
    const Tensor flat = in_place ? first.detach() : empty({numel}, options_of(first));
    const auto for_each_part = [&](auto&& visit) {
      std::int64_t offset = 0;
      for (const std::size_t index : indices) {
        const Tensor& tensor = tensors[index];
        visit(tensor, flat.as_strided(tensor.sizes(), contiguous_strides(tensor.sizes()), offset));
        offset += tensor.numel();
      }
    };
    if (reads && !in_place) for_each_part([](const Tensor& tensor, const Tensor& part) { copy_values(tensor, part); });
    operate(flat);
    if (writes && !in_place) for_each_part([](const Tensor& tensor, const Tensor& part) { copy_values(part, tensor); });
    if (writes)
      for (const std::size_t index : indices) tensors[index].storage()->bump_version();
  }
}

}  // namespace

void broadcast_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, int root) {
  if (group.world_size() == 1) return;
  static const OperationLabel label("parameters and buffers");
  const LabelScope scope(label);
  const bool sends = group.rank() == root;
  for_each_packed(tensors, sends, !sends, [&](const Tensor& flat) { group.broadcast(flat, root)->wait(); });
}

void all_reduce_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, ReduceOp op) {
  if (group.world_size() == 1) return;
  for_each_packed(tensors, true, true, [&](const Tensor& flat) { group.all_reduce(flat, op)->wait(); });
}

}  // namespace lockstep::distributed
