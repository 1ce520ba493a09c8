#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Gives every rank the root's values of all tensors, those of one dtype and device together in buffers of
/// `buffer_bytes` at most (or of one tensor). Every rank must pass tensors of the same shapes, dtypes and order. Blocks
/// until done.
void broadcast_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, int root = 0,
                         std::size_t buffer_bytes = std::size_t{256} << 20);

}  // namespace lockstep::distributed
