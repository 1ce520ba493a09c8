#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// `source`, or a copy of it if it shares memory with `target` under another layout, so that an elementwise operation
/// into `target` does not read what it has written already.
Tensor without_overlap(const Tensor& source, const Tensor& target);

/// Throws Error naming `op` unless a result of dtype `result` goes into `target`: floating-point numbers do not go into
/// integers, and these not into bool.
void check_result_fits(DType result, const Tensor& target, const char* op);

/// target.copy_(source), whose errors name `op`.
const Tensor& write_values(const Tensor& target, const Tensor& source, const char* op);
/// The same where `source` was computed from target, whose old values therefore get their gradients through it alone.
const Tensor& replace_values(const Tensor& target, const Tensor& source, const char* op);

}  // namespace lockstep
