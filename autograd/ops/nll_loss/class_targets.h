#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Scores seen as [batch, classes, inner] and targets as [batch, inner]; one "row" is one (batch, inner) pair.
struct ClassRows {
  std::int64_t batch = 1;
  std::int64_t classes = 0;
  std::int64_t inner = 1;
  std::int64_t rows() const { return batch * inner; }
};

/// Checks that `scores` ([C], [N, C] or [N, C, d1, ...]), int64 `target` and the optional class `weight` ([C]) fit each
/// other. Throws Error naming `op`.
ClassRows check_class_targets(const Tensor& scores, const Tensor& target, const Tensor& weight, const char* op);

/// Note [Targets on a device]
/// On the CPU a target outside [0, classes) that is not ignore_index is an Error. On a CUDA device nobody waits for the
/// targets' values: a step must be able to go into a graph. There such a row's loss is NaN, and so is the sum or mean
/// of all, and at least one element of its gradient; no memory is read out of bounds. A training loop that looks at its
/// loss stops at the same step; on the CPU the same batch says which row it was.

/// Throws the Error for a target outside [0, classes).
[[noreturn]] void throw_bad_target(const char* op, std::int64_t row, std::int64_t value, const ClassRows& rows,
                                   std::int64_t ignore_index);

}  // namespace lockstep
