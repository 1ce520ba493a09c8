#pragma once

#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Which elements are not a number; bool, of the shape of `x`. Integers never are.
Tensor isnan(const Tensor& x);
/// Which elements are infinite, of either sign.
Tensor isinf(const Tensor& x);
/// Which elements are neither infinite nor NaN.
Tensor isfinite(const Tensor& x);

/// x with numbers in the places of NaN and the infinities; without, those of the largest magnitude that the dtype has.
/// Integers stay as they are.
Tensor nan_to_num(const Tensor& x, double nan = 0.0, std::optional<double> posinf = std::nullopt,
                  std::optional<double> neginf = std::nullopt);
}  // namespace lockstep
