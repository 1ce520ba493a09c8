#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// `source`, or a copy of it if it shares memory with `target` under another layout, so that an elementwise operation
/// into `target` does not read what it has written already.
Tensor without_overlap(const Tensor& source, const Tensor& target);

}  // namespace lockstep
