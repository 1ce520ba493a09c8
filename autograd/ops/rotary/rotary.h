#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Rotates pairs of elements of x [..., T, D]: with a and b the halves of a row, out = (a cos - b sin, b cos + a sin).
/// cosine and sine are [T, D / 2], of x's dtype or float32, and take no gradient. Su et al., "RoFormer: enhanced
/// transformer with rotary position embedding" (2021), with the pairs (i, i + D / 2) of GPT-NeoX and Llama. Floating
/// point. Throws Error for shapes, dtypes or devices that do not fit.
Tensor rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine);

}  // namespace lockstep
