#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Note [Operations of the CPU alone]
/// What has no kernel for other devices is computed on the CPU: its inputs are copied there, its results and gradients
/// back, by Tensor::to(), which is recorded as ever. Values are those of the CPU; each call waits for the device, so it
/// throws Error where a CUDA graph is captured.

/// Whether an operation of the CPU alone has to move `tensor`.
inline bool is_elsewhere(const Tensor& tensor) {
  return tensor.defined() && !tensor.device().is_cpu();
}

}  // namespace lockstep
