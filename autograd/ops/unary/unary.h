#pragma once

#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

// Elementwise functions of one tensor. Floating-point tensors keep their dtype (float16 and bfloat16 are computed in
// float32 and rounded once); float32 results are within about 2 ulp, see Note [Vector math]. Integer and bool tensors
// give float32, except for neg, abs, relu and clamp, which keep integers. PyTorch semantics.

/// e to the power x.
Tensor exp(const Tensor& x);
/// Natural logarithm.
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
/// 1 / sqrt(x).
Tensor rsqrt(const Tensor& x);
/// 1 / x.
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
/// x to a fixed power. An integer tensor keeps its dtype under whole exponents, which must not be negative, and gives
/// float32 under others.
Tensor pow(const Tensor& x, double exponent);
Tensor abs(const Tensor& x);
/// Throws Error for bool tensors, as does the operator.
Tensor neg(const Tensor& x);
Tensor tanh(const Tensor& x);
/// 1 / (1 + exp(-x)).
Tensor sigmoid(const Tensor& x);
/// max(x, 0); its gradient at 0 is 0.
Tensor relu(const Tensor& x);
/// x where positive, negative_slope x elsewhere.
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// x sigmoid(x).
Tensor silu(const Tensor& x);

/// Sine and cosine of x in radians.
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);

/// How gelu() computes the normal distribution's cumulative function.
enum class GeluMode { exact, tanh };
/// x Phi(x). Hendrycks and Gimpel, "Gaussian error linear units" (2016); `tanh` is the paper's approximation.
Tensor gelu(const Tensor& x, GeluMode mode = GeluMode::exact);

/// Values below min become min, above max become max; NaN stays. The gradient passes where min <= x <= max. At least
/// one bound must be given. On integer tensors, bounds that are no whole numbers give float32.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = std::nullopt);

}  // namespace lockstep
