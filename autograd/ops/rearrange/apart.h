#pragma once

// For .cpp files only.

#include "lockstep/autograd/ops/copy/copy.h"

namespace lockstep {

/// `out`, or a copy if it is a view of `x`, as it is where there was nothing to rearrange.
inline Tensor apart(const Tensor& out, const Tensor& x) {
  return out.storage() == x.storage() ? clone(out) : out;
}

}  // namespace lockstep
