#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/layer_norm/layer_norm.h"

namespace lockstep {

/// The C channels of input [N, C, ...] in `groups` groups of neighbours, each normalised over its channels and
/// positions as by layer_norm(), then times weight [C] plus bias [C]. Wu and He, "Group normalization" (2018);
/// semantics of torch.nn.functional.group_norm; one group for each channel is instance normalisation. Dtypes as
/// layer_norm(). Throws Error unless groups divides C and a group has elements.
Tensor group_norm(const Tensor& input, std::int64_t groups, const LayerNormOptions& options = {});
/// The same with PyTorch's arguments; weight and bias may be undefined.
inline Tensor group_norm(const Tensor& input, std::int64_t groups, const Tensor& weight, const Tensor& bias = {},
                         double eps = 1e-5) {
  return group_norm(input, groups, LayerNormOptions{.weight = weight, .bias = bias, .eps = eps});
}

/// Each channel of each sample of input [N, C, ...] over its positions: group_norm() of C groups. Ulyanov, Vedaldi and
/// Lempitsky, "Instance normalization" (2016); torch.nn.functional.instance_norm without running statistics. Throws
/// Error for fewer than three dimensions.
Tensor instance_norm(const Tensor& input, const LayerNormOptions& options = {});

/// x / (k + alpha * m)^beta with m the mean of the squares of `size` neighbouring channels of x [N, C, ...], absent
/// ones counting as 0, as torch.nn.functional.local_response_norm. Krizhevsky, Sutskever and Hinton, "ImageNet
/// classification with deep convolutional neural networks" (2012). Throws Error for fewer than three dimensions.
Tensor local_response_norm(const Tensor& x, std::int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1.0);

}  // namespace lockstep
