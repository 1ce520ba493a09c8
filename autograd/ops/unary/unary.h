#pragma once

#include <optional>
#include <string_view>

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
/// x to a fixed power. An integer tensor keeps its dtype under whole exponents, 2.0 as well as 2, which must not be
/// negative, and gives float32 under others.
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
/// The same by PyTorch's words: "none" or "tanh". Throws Error for others.
Tensor gelu(const Tensor& x, std::string_view approximate);

/// Values below min become min, above max become max; NaN stays. The gradient passes where min < x < max, and an
/// infinite bound is none. At least one bound must be given. On integer tensors, bounds that are no whole numbers give
/// float32, while 2.0 is whole as 2 is; beyond 2^53 they are rounded to doubles, but not clamp_min()'s and
/// clamp_max()'s.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = std::nullopt);

/// -1, 0 or 1. Its gradient, and that of the next four, is 0. They keep integers.
Tensor sign(const Tensor& x);  ///< of bool: x
/// Rounded downwards, upwards, to the nearest whole number (halves to the even one) and towards 0.
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);
Tensor trunc(const Tensor& x);

/// x clamped to [min, max], without a gradient at the bounds themselves. torch.nn.functional.hardtanh.
Tensor hardtanh(const Tensor& x, double min = -1.0, double max = 1.0);
/// hardtanh(x, 0, 6).
Tensor relu6(const Tensor& x);
/// x where positive, alpha (exp(x) - 1) elsewhere. Clevert, Unterthiner and Hochreiter, "Fast and accurate deep network
/// learning by exponential linear units" (2016).
Tensor elu(const Tensor& x, double alpha = 1.0);
/// elu() with the constants of Klambauer et al., "Self-normalizing neural networks" (2017).
Tensor selu(const Tensor& x);
/// x where positive, alpha (exp(x / alpha) - 1) elsewhere. Barron, "Continuously differentiable exponential linear
/// units" (2017).
Tensor celu(const Tensor& x, double alpha = 1.0);
/// log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold.
Tensor softplus(const Tensor& x, double beta = 1.0, double threshold = 20.0);
/// log(sigmoid(x)), without overflow.
Tensor logsigmoid(const Tensor& x);
/// x / (1 + |x|).
Tensor softsign(const Tensor& x);
/// x relu6(x + 3) / 6. Howard et al., "Searching for MobileNetV3" (2019).
Tensor hardswish(const Tensor& x);
/// relu6(x + 3) / 6.
Tensor hardsigmoid(const Tensor& x);
/// x tanh(softplus(x)). Misra, "Mish" (2020).
Tensor mish(const Tensor& x);

/// The error function.
Tensor erf(const Tensor& x);
/// log(1 + x) and exp(x) - 1, exact near 0 too.
Tensor log1p(const Tensor& x);
Tensor expm1(const Tensor& x);
/// Logarithms to the bases 2 and 10.
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);
/// Tangent of x in radians.
Tensor tan(const Tensor& x);
/// Hyperbolic sine and cosine.
Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
/// Inverse tangent and sine, in radians.
Tensor atan(const Tensor& x);
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
/// Inverse hyperbolic sine, cosine and tangent.
Tensor asinh(const Tensor& x);
Tensor acosh(const Tensor& x);
Tensor atanh(const Tensor& x);
/// The logarithm of the gamma function's magnitude, and its slope, whose gradient is the trigamma function.
Tensor lgamma(const Tensor& x);
Tensor digamma(const Tensor& x);
/// 1 - erf(x), whose small values keep their digits.
Tensor erfc(const Tensor& x);
/// The x with erf(x) = y.
Tensor erfinv(const Tensor& y);
/// x - trunc(x), of floating-point tensors.
Tensor frac(const Tensor& x);
/// x with numbers in the places of NaN and the infinities; without, those of the largest magnitude that the dtype has.
/// Integers stay as they are.
Tensor nan_to_num(const Tensor& x, double nan = 0.0, std::optional<double> posinf = std::nullopt,
                  std::optional<double> neginf = std::nullopt);

// Composed of others:
/// 2 to the power x.
Tensor exp2(const Tensor& x);
/// log(x / (1 - x)), for x clamped to [eps, 1 - eps] if there is an eps.
Tensor logit(const Tensor& x, std::optional<double> eps = std::nullopt);
/// clamp() with a lower bound alone. An integer tensor keeps its dtype beside an integer, and gives float32 beside a
/// floating-point number, whole ones too.
Tensor clamp_min(const Tensor& x, Scalar min);
/// clamp() with an upper bound alone, as clamp_min().
Tensor clamp_max(const Tensor& x, Scalar max);
/// clamp() by its other name.
Tensor clip(const Tensor& x, std::optional<double> min, std::optional<double> max = std::nullopt);
/// x above the threshold, `value` elsewhere.
Tensor threshold(const Tensor& x, double threshold, double value);
/// x - tanh(x).
Tensor tanhshrink(const Tensor& x);
/// x moved by lambd towards 0, and 0 within lambd of it; and x, but 0 within lambd of it.
Tensor softshrink(const Tensor& x, double lambd = 0.5);
Tensor hardshrink(const Tensor& x, double lambd = 0.5);
/// The first half of `dim` times the sigmoid of the second. Dauphin et al., "Language modeling with gated convolutional
/// networks" (2017).
Tensor glu(const Tensor& x, std::int64_t dim = -1);
/// x where positive, weight x elsewhere: a weight of one element, or one for each channel (dimension 1).
Tensor prelu(const Tensor& x, const Tensor& weight);

}  // namespace lockstep
