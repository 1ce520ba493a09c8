#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Which elements are not a number; bool, of the shape of `x`. Integers never are.
Tensor isnan(const Tensor& x);
/// Which elements are infinite, of either sign.
Tensor isinf(const Tensor& x);
/// Which elements are neither infinite nor NaN.
Tensor isfinite(const Tensor& x);

}  // namespace lockstep
