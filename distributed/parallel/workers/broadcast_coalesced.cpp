#include "lockstep/distributed/parallel/workers/broadcast_coalesced.h"

#include <limits>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"

namespace lockstep::distributed {

void broadcast_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, int root) {
  if (group.world_size() == 1) return;
  std::vector<BucketItem> items;
  for (const Tensor& tensor : tensors) items.push_back({tensor.nbytes(), tensor.dtype(), tensor.device()});
  static const OperationLabel label("parameters and buffers");
  const LabelScope scope(label);
  constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  for (const std::vector<std::size_t>& indices : assign_buckets(items, kNoLimit, kNoLimit)) {
    std::int64_t numel = 0;
    for (std::size_t index : indices) numel += tensors[index].numel();
    const Tensor flat = empty({numel}, options_of(tensors[indices.front()]));
    const auto for_each_part = [&](auto&& visit) {
      std::int64_t offset = 0;
      for (std::size_t index : indices) {
        const Tensor& tensor = tensors[index];
        visit(tensor, flat.as_strided(tensor.sizes(), contiguous_strides(tensor.sizes()), offset));
        offset += tensor.numel();
      }
    };
    if (group.rank() == root)
      for_each_part([](const Tensor& tensor, const Tensor& part) { copy_values(tensor, part); });
    group.broadcast(flat, root)->wait();
    if (group.rank() == root) continue;
    for_each_part([](const Tensor& tensor, const Tensor& part) {
      copy_values(part, tensor);
      tensor.storage()->bump_version();
    });
  }
}

}  // namespace lockstep::distributed
