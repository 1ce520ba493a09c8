#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Throws Error naming `op` if `target` repeats elements (an expanded tensor), which no in-place operation can write.
void check_no_repeats(const Tensor& target, const char* op);

/// `source`, or a copy of it if it shares memory with `target` under another layout, so that an elementwise operation
/// into `target` does not read what it has written already.
Tensor without_overlap(const Tensor& source, const Tensor& target);

}  // namespace lockstep
