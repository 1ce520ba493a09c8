#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// y = x * weight^T + bias. x is [*, in], weight [out, in], bias [out] or undefined; y is [*, out]. A weight [in] with
/// a bias without dimensions gives y of sizes [*]. Tensors of one dtype on one device: floating-point, of which float16
/// and bfloat16 accumulate in float, or integers. Throws Error for sizes that do not fit. Semantics of
/// torch.nn.functional.linear.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace lockstep
