#pragma once

// For .cpp files of this folder only.

#include "lockstep/autograd/ops/conv2d/conv2d.h"

namespace lockstep::detail {

/// conv_transpose2d() for a function of another name, which errors name.
Tensor conv_transpose2d_for(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const ConvTranspose2dOptions& options);

}  // namespace lockstep::detail
