#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// target = a + b; all floating-point, of one shape, dtype and device. target may be one of them.
using AddValuesKernel = void(const Tensor& target, const Tensor& a, const Tensor& b);
AddValuesKernel add_values_cuda;

}  // namespace lockstep
