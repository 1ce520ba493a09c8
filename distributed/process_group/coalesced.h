#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Note [Coalesced operations]
/// Operations on many tensors, which travel together: those of one dtype and device in buffers of `buffer_bytes` at
/// most, or one larger tensor by itself. Every rank must pass tensors of the same shapes, dtypes and order. They block
/// until done, and throw Error as the group's operations do.
inline constexpr std::size_t kCoalescedBytes = std::size_t{256} << 20;

/// Gives every rank the root's values of all tensors.
void broadcast_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, int root = 0,
                         std::size_t buffer_bytes = kCoalescedBytes);

/// Replaces each tensor by its reduction over all ranks, of which every rank gets the same bits.
void all_reduce_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, ReduceOp op = ReduceOp::sum,
                          std::size_t buffer_bytes = kCoalescedBytes);

}  // namespace lockstep::distributed
