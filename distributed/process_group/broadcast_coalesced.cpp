#include "lockstep/distributed/process_group/broadcast_coalesced.h"

#include <utility>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::distributed {
namespace {

/// Of one dtype and device.
void broadcast_together(const std::vector<Tensor>& tensors, ProcessGroup& group, int root) {
  std::int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  const Tensor flat = empty({numel}, options_of(tensors.front()));
  const auto for_each_part = [&](auto&& visit) {
    std::int64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      visit(tensor, flat.as_strided(tensor.sizes(), contiguous_strides(tensor.sizes()), offset));
      offset += tensor.numel();
    }
  };
  if (group.rank() == root) for_each_part([](const Tensor& tensor, const Tensor& part) { copy_values(tensor, part); });
  group.broadcast(flat, root)->wait();
  if (group.rank() == root) return;
  for_each_part([](const Tensor& tensor, const Tensor& part) {
    copy_values(part, tensor);
    tensor.storage()->bump_version();
  });
}

}  // namespace

void broadcast_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, int root, std::size_t buffer_bytes) {
  if (group.world_size() == 1) return;
  static const OperationLabel label("parameters and buffers");
  const LabelScope scope(label);
  for (std::vector<Tensor> left = tensors; !left.empty();) {
    std::vector<Tensor> together, rest;
    std::size_t bytes = 0;
    for (const Tensor& each : left) {
      const bool alike = each.dtype() == left.front().dtype() && each.device() == left.front().device();
      const bool fits = alike && (together.empty() || bytes + each.nbytes() <= buffer_bytes);
      (fits ? together : rest).push_back(each);
      if (fits) bytes += each.nbytes();
    }
    broadcast_together(together, group, root);
    left = std::move(rest);
  }
}

}  // namespace lockstep::distributed
