#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// y = x * weight^T + bias. x is [*, in], weight [out, in], bias [out] or undefined; y is [*, out]. Floating-point
/// tensors of one dtype on one device; float16 and bfloat16 accumulate in float. Throws Error for sizes that do not
/// fit. Semantics of torch.nn.functional.linear.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// relu(linear(x, weight, bias)) as one operation: one pass less over y, forward and backward.
Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace lockstep
