#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// target += source, element by element, recording nothing. Same shape, dtype and device; any strides. The engine sums
/// gradients that meet at a node with it.
void add_values_(const Tensor& target, const Tensor& source);
/// a + b in new memory.
Tensor add_values(const Tensor& a, const Tensor& b);

}  // namespace lockstep
