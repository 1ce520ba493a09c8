#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Mean and biased variance of each channel over `count` values: [C], float64 for float64 inputs, else float32.
struct ChannelStatistics {
  Tensor mean;             ///< [C]
  Tensor var;              ///< [C], biased: divided by count
  std::int64_t count = 0;  ///< values that each channel's statistics are of
};

/// Options of batch_norm().
struct BatchNormOptions {
  Tensor weight = {};                       ///< [C], or undefined: 1
  Tensor bias = {};                         ///< [C], or undefined: 0
  bool training = false;                    ///< normalise by the batch's own statistics, and update the running ones
  double momentum = 0.1;                    ///< share of the new statistics in the running ones
  double eps = 1e-5;                        ///< added to the variance
  ChannelStatistics* statistics = nullptr;  ///< if set, receives the statistics that training used
  Tensor batches = {};                      ///< one int64, or undefined: raised by 1 in training
};

/// (x - mean) / sqrt(var + eps) * weight + bias for each channel (dimension 1) of an input [N, C] or [N, C, d1, ...].
/// Ioffe and Szegedy, "Batch Normalization" (2015); semantics of torch.nn.functional.batch_norm.
///
/// Training uses mean and biased variance of this batch and, where given, updates in place
///   running = (1 - momentum) * running + momentum * batch     (with the unbiased variance)
/// Otherwise the running statistics, which must be given, are used. `running_mean` and `running_var` are [C] without
/// gradients, or undefined. float16 and bfloat16 are computed in float; weight, bias and running statistics may then be
/// float32. Throws Error for shapes, dtypes or devices that do not fit, and in training for one value per channel.
Tensor batch_norm(const Tensor& input, const Tensor& running_mean, const Tensor& running_var,
                  const BatchNormOptions& options = {});

}  // namespace lockstep
