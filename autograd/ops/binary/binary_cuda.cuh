#pragma once

// What the binary family's kernels share. For .cu files only.

#include <type_traits>

#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/core/cuda/elementwise.cuh"

namespace lockstep::binary {

template <typename C>
cuda::Input<C> cuda_input(const Operand& operand) {
  if (operand.tensor) return *operand.tensor;
  const Scalar scalar = operand.scalar;
  if constexpr (std::is_integral_v<C>) {
    if (!scalar.is_floating_point()) return scalar.to_int64();
  }
  return static_cast<C>(scalar.to_double());
}

}  // namespace lockstep::binary
