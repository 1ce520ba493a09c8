#pragma once

#include <cstdint>
#include <span>

#include "lockstep/core/dtype.h"
#include "lockstep/distributed/operation/operation.h"

namespace lockstep::distributed {

/// output[i] = (parts[0][i] op parts[1][i] op ...) / divisor, in this order, for `count` elements; `avg` combines like
/// `sum`. The half types are reduced in float and rounded once. `output` may be one of the parts.
void reduce_parts(DType dtype, ReduceOp op, void* output, std::span<const void* const> parts, std::int64_t count,
                  double divisor = 1.0);

}  // namespace lockstep::distributed
