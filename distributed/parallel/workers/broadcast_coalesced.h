#pragma once

#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Gives every rank the root's values of all tensors, in one broadcast for each dtype and device. Every rank must pass
/// tensors of the same shapes, dtypes and order. Blocks until done.
void broadcast_coalesced(const std::vector<Tensor>& tensors, ProcessGroup& group, int root = 0);

}  // namespace lockstep::distributed
