#include "lockstep/distributed/process_group/coalesced.h"

#include <utility>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::distributed {
namespace {

// Calls operate(flat) on the tensors' values, which are of one dtype and device, packed unless they are those of one
// contiguous tensor. `reads`: what is in them counts; `writes`: what is there afterwards does.
template <typename Operate>
void operate_together(const std::vector<Tensor>& tensors, bool reads, bool writes, const Operate& operate) {
  const Tensor& first = tensors.front();
  const bool in_place = tensors.size() == 1 && first.is_contiguous();
  std::int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  const Tensor flat = in_place ? first.detach() : empty({numel}, options_of(first));
  const auto for_each_part = [&](auto&& visit) {
    std::int64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      visit(tensor, flat.as_strided(tensor.sizes(), contiguous_strides(tensor.sizes()), offset));
      offset += tensor.numel();
    }
  };
  if (reads && !in_place) for_each_part([](const Tensor& tensor, const Tensor& part) { copy_values(tensor, part); });
  operate(flat);
  if (!writes) return;
  if (!in_place) for_each_part([](const Tensor& tensor, const Tensor& part) { copy_values(part, tensor); });
  for (const Tensor& tensor : tensors) tensor.storage()->bump_version();
}

template <typename Operate>
void for_each_buffer(std::vector<Tensor> left, std::size_t buffer_bytes, bool reads, bool writes,
                     const Operate& operate) {
  while (!left.empty()) {
    std::vector<Tensor> together, rest;
    std::size_t bytes = 0;
    for (const Tensor& each : left) {
      const bool alike = each.dtype() == left.front().dtype() && each.device() == left.front().device();
      const bool fits = alike && (together.empty() || bytes + each.nbytes() <= buffer_bytes);
      (fits ? together : rest).push_back(each);
      if (fits) bytes += each.nbytes();
    }
    operate_together(together, reads, writes, operate);
    left = std::move(rest);
  }
}

}  // namespace

void broadcast_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, int root, std::size_t buffer_bytes) {
  if (group.world_size() == 1) return;
  static const OperationLabel label("parameters and buffers");
  const LabelScope scope(label);
  const bool sends = group.rank() == root;
  for_each_buffer(tensors, buffer_bytes, sends, !sends,
                  [&](const Tensor& flat) { group.broadcast(flat, root)->wait(); });
}

void all_reduce_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, ReduceOp op,
                          std::size_t buffer_bytes) {
  if (group.world_size() == 1) return;
  for_each_buffer(tensors, buffer_bytes, true, true, [&](const Tensor& flat) { group.all_reduce(flat, op)->wait(); });
}

}  // namespace lockstep::distributed
