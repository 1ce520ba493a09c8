#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/support/channel_layout.h"
#include "lockstep/autograd/ops/support/elementwise_links.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// All tensors contiguous. Statistics and sums are float64 for float64 inputs, else float32. weight and bias are
// undefined or of any floating-point dtype.
/// running = (1 - momentum) * running + momentum * value, in place, of mean and variance, the latter times `unbiased`.
/// The running ones are [C] of any floating-point dtype; either may be undefined. `batches`, one int64 or undefined, is
/// raised by 1.
struct BatchNormRunning {
  Tensor mean, var, batches;
  double unbiased = 1, momentum = 0;
};
/// The statistics, and the running ones' update.
using BatchNormStatisticsKernel = void(const Tensor& input, const Tensor& mean, const Tensor& var, ChannelLayout layout,
                                       const BatchNormRunning& running);
BatchNormStatisticsKernel batch_norm_statistics_cpu, batch_norm_statistics_cuda;
/// The update alone.
using BatchNormRunningKernel = void(const Tensor& mean, const Tensor& var, const BatchNormRunning& running);
BatchNormRunningKernel batch_norm_running_cpu, batch_norm_running_cuda;
using BatchNormApplyKernel = void(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                                  const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout);
BatchNormApplyKernel batch_norm_apply_cpu, batch_norm_apply_cuda;
/// Behind a normalisation: a relu, the sum with a contiguous tensor of the input's sizes and dtype (undefined: none),
/// and a relu of that. Each result is rounded to its dtype.
struct BatchNormFollowing {
  Tensor other;
  bool relu_before = false, relu_after = false;
};
using BatchNormApplyFollowedKernel = void(const Tensor& input, const Tensor& mean, const Tensor& var,
                                          const Tensor& weight, const Tensor& bias, const Tensor& output, double eps,
                                          ChannelLayout layout, const BatchNormFollowing& following);
BatchNormApplyFollowedKernel batch_norm_apply_followed_cuda;
/// The same, float32, with what follows.
using BatchNormApplyLinkedKernel = void(const Tensor& input, const Tensor& mean, const Tensor& var,
                                        const Tensor& weight, const Tensor& bias, const Tensor& output, double eps,
                                        ChannelLayout layout, const ElementwiseLinks& links);
BatchNormApplyLinkedKernel batch_norm_apply_linked_cpu;
/// The same up to a max pool of 2 x 2 side by side, which what comes `before` it leads to; `positions` may be
/// undefined.
using BatchNormPoolKernel = void(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                                 const Tensor& bias, double eps, ChannelLayout layout, const ElementwiseLinks& before,
                                 const Pool2dGeometry& pool, ReluPlace relu, const Tensor& output,
                                 const Tensor& positions);
BatchNormPoolKernel batch_norm_pool_cpu;
using BatchNormSumsKernel = void(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                 const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps,
                                 ChannelLayout layout);
BatchNormSumsKernel batch_norm_sums_cpu, batch_norm_sums_cuda;
/// The same, of the gradient of a `relu` behind the normalisation, of which counts what comes through.
using BatchNormSumsThroughKernel = void(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                        const Tensor& weight, const Tensor& bias, bool relu, const Tensor& sum_grad,
                                        const Tensor& sum_grad_normalized, double eps, ChannelLayout layout);
BatchNormSumsThroughKernel batch_norm_sums_through_cuda;
/// The same, float32, of a gradient that comes from a max pool of 2 x 2 side by side: `pool_grad` and `positions` are
/// spread to `grad`, of the input's sizes, plane by plane, each of which is summed while it is in the cache.
using BatchNormPooledSumsKernel = void(const Pool2dGeometry& pool, const Tensor& pool_grad, const Tensor& positions,
                                       const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                       const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps,
                                       ChannelLayout layout);
BatchNormPooledSumsKernel batch_norm_pooled_sums_cpu;
/// `grad_input` may be `grad`. `count`: how many values the statistics came from; undefined sums: the statistics are
/// constants.
using BatchNormInputGradKernel = void(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                      const Tensor& weight, const Tensor& sum_grad, const Tensor& sum_grad_normalized,
                                      const Tensor& grad_input, double eps, std::int64_t count, ChannelLayout layout);
BatchNormInputGradKernel batch_norm_input_grad_cpu, batch_norm_input_grad_cuda;
/// The same, of the gradient of a `relu` behind the normalisation, of which counts what comes through.
using BatchNormInputGradThroughKernel = void(const Tensor& grad, const Tensor& input, const Tensor& mean,
                                             const Tensor& var, const Tensor& weight, const Tensor& bias, bool relu,
                                             const Tensor& sum_grad, const Tensor& sum_grad_normalized,
                                             const Tensor& grad_input, double eps, std::int64_t count,
                                             ChannelLayout layout);
BatchNormInputGradThroughKernel batch_norm_input_grad_through_cuda;

}  // namespace lockstep
