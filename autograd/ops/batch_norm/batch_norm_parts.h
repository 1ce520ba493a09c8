#pragma once

// The steps of batch_norm, for code that puts something between them: statistics that are combined over processes or
// logical shards before they are used. None of them records anything.

#include "lockstep/autograd/ops/batch_norm/batch_norm.h"
#include "lockstep/core/tensor.h"

namespace lockstep::batch_norm_parts {

/// Whether autocast leaves the input in its type: half types on CUDA devices, with statistics in float32, as in
/// PyTorch. Casts would take longer there than the rest.
inline bool stays_half(const Tensor& input) {
  return input.defined() && input.device().is_cuda() && element_size(input.dtype()) == 2;
}

/// Statistics over all batches: running = (1 - momentum) * running + momentum * batch, in place, with the variance
/// scaled to the unbiased one. Either may be undefined. `batches`, one contiguous int64 or undefined, counts them.
struct RunningStatistics {
  Tensor mean = {}, var = {};
  double momentum = 0.0;
  Tensor batches = {};
};

/// Statistics of an input [N, C] or [N, C, d1, ...] over everything but dimension 1; zeros for a batch of 0. Updates
/// `running`, if there is more than one value per channel.
ChannelStatistics channel_statistics(const Tensor& input, const RunningStatistics& running = {});

/// The update by itself. Needs statistics.count > 1.
void update_running_statistics(const RunningStatistics& running, const ChannelStatistics& statistics);

/// (input - mean) / sqrt(var + eps) * weight + bias; weight and bias may be undefined.
Tensor normalize(const Tensor& input, const ChannelStatistics& statistics, const Tensor& weight, const Tensor& bias,
                 double eps);

/// Sums over each channel, in the dtype of the statistics: of the gradient (the gradient of bias), and of the gradient
/// times the normalised input (the gradient of weight).
struct GradientSums {
  Tensor bias;
  Tensor weight;
};
GradientSums gradient_sums(const Tensor& grad, const Tensor& input, const ChannelStatistics& statistics, double eps);

/// Whether `grad` is a max pool's that waits, which pooled_gradient_sums() takes.
bool is_pooled_gradient(const Tensor& grad, const Tensor& input);
/// gradient_sums() of such a gradient, which is written to `values` on the way: a new tensor like the input.
GradientSums pooled_gradient_sums(const Tensor& grad, const Tensor& values, const Tensor& input,
                                  const ChannelStatistics& statistics, double eps);

/// The gradient of a relu of the result, where that and the input are laid out (Note [Channels last]): `values` are the
/// relu's own, channels last, as is `input`. What the relu let through is found from that again.
struct ThroughRelu {
  Tensor values, input;
  Tensor weight, bias;  ///< as they were: contiguous or undefined
};
GradientSums gradient_sums(const ThroughRelu& grad, const ChannelStatistics& statistics, double eps);
Tensor input_gradient(const ThroughRelu& grad, const ChannelStatistics& statistics, const GradientSums& sums,
                      double eps);

/// The input's gradient, if the statistics were computed from `statistics.count` values that gave `sums` in all. With
/// undefined sums the statistics count as constants. In place of `grad` if that is `own`: the caller's alone.
Tensor input_gradient(const Tensor& grad, const Tensor& input, const ChannelStatistics& statistics,
                      const Tensor& weight, const GradientSums& sums, double eps, bool own = false);

}  // namespace lockstep::batch_norm_parts
