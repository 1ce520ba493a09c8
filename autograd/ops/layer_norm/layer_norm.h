#pragma once

#include <optional>

#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of layer_norm() and group_norm().
struct LayerNormOptions {
  Tensor weight = {};  ///< of shape normalized_shape (group_norm: [C]), or undefined: 1
  Tensor bias = {};    ///< of the same shape, or undefined: 0
  double eps = 1e-5;   ///< added to the variance; below 0 it may give NaN
};

/// (x - mean) / sqrt(var + eps) * weight + bias, with mean and biased variance over the trailing dimensions
/// `normalized_shape`. Ba, Kiros and Hinton, "Layer Normalization" (2016); semantics of
/// torch.nn.functional.layer_norm. Floating point; float16 and bfloat16 are computed in float, and then weight and bias
/// may also be float32. Throws Error if normalized_shape is empty or not the end of input's shape, or if weight or bias
/// do not fit.
Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const LayerNormOptions& options = {});
/// The same with PyTorch's arguments; weight and bias may be undefined.
inline Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias,
                         double eps = 1e-5) {
  return layer_norm(input, normalized_shape, LayerNormOptions{.weight = weight, .bias = bias, .eps = eps});
}

/// x / sqrt(mean(x^2) + eps) * weight, with the mean over the trailing dimensions `normalized_shape`. Zhang and
/// Sennrich, "Root mean square layer normalization" (2019); semantics of torch.nn.functional.rms_norm. `weight` may be
/// undefined (1); without `eps` it is the dtype's machine epsilon, that of float32 for the half types. Dtypes and
/// errors as layer_norm().
Tensor rms_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight = {},
                std::optional<double> eps = std::nullopt);

}  // namespace lockstep
