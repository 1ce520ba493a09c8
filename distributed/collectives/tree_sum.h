#pragma once

#include <cstdint>
#include <span>

#include "lockstep/core/dtype.h"
#include "lockstep/distributed/collectives/shard_tree.h"

namespace lockstep::distributed {

/// output[i] = (the sum of parts[0][i], parts[1][i] ... along the shard tree) / divisor, for `count` elements of a
/// floating-point dtype. parts[p] holds the sum of nodes[p]; the nodes go from left to right and fill one node of the
/// tree. Every addition is rounded to the dtype, so that it does not matter who makes it; float16 and bfloat16 are
/// added in float. `output` may be one of the parts. Throws Error for nodes that do not fill one node.
void tree_sum(DType dtype, void* output, std::span<const void* const> parts, std::span<const TreeNode> nodes,
              std::int64_t count, double divisor = 1.0);

}  // namespace lockstep::distributed
