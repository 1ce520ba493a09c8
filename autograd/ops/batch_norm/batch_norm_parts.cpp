#include "lockstep/autograd/ops/batch_norm/batch_norm_parts.h"

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::batch_norm_parts {

namespace {

constexpr KernelTable<BatchNormStatisticsKernel> statistics_kernel{"batch_norm", batch_norm_statistics_cpu,
                                                                   LOCKSTEP_CUDA_KERNEL(batch_norm_statistics_cuda)};
constexpr KernelTable<BatchNormRunningKernel> running_kernel{"batch_norm", batch_norm_running_cpu,
                                                             LOCKSTEP_CUDA_KERNEL(batch_norm_running_cuda)};
constexpr KernelTable<BatchNormApplyKernel> apply_kernel{"batch_norm", batch_norm_apply_cpu,
                                                         LOCKSTEP_CUDA_KERNEL(batch_norm_apply_cuda)};
constexpr KernelTable<BatchNormSumsKernel> sums_kernel{"batch_norm backward", batch_norm_sums_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(batch_norm_sums_cuda)};
constexpr KernelTable<BatchNormInputGradKernel> input_grad_kernel{"batch_norm backward", batch_norm_input_grad_cpu,
                                                                  LOCKSTEP_CUDA_KERNEL(batch_norm_input_grad_cuda)};

ChannelLayout layout_of(const Tensor& input) {
  ChannelLayout layout{input.sizes()[0], input.sizes()[1], 1};
  for (int d = 2; d < input.dim(); ++d) layout.inner *= input.sizes()[d];
  return layout;
}

TensorOptions statistics_options(const Tensor& input) {
  return {.dtype = input.dtype() == kFloat64 ? kFloat64 : kFloat32, .device = input.device()};
}

}  // namespace

ChannelStatistics channel_statistics(const Tensor& input) {
  const ChannelLayout layout = layout_of(input);
  const TensorOptions options = statistics_options(input);
  ChannelStatistics statistics{empty({layout.channels}, options), empty({layout.channels}, options), layout.count()};
  statistics_kernel(input)(as_contiguous(input), statistics.mean, statistics.var, layout);
  return statistics;
}

void update_running_statistics(const Tensor& running_mean, const Tensor& running_var,
                               const ChannelStatistics& statistics, double momentum) {
  LOCKSTEP_ASSERT(statistics.count > 1, "running statistics from {} values per channel", statistics.count);
  const auto count = static_cast<double>(statistics.count);
  if (running_mean.defined()) {
    running_kernel(running_mean)(statistics.mean, running_mean, 1.0, momentum);
    running_mean.storage()->bump_version();
  }
  if (running_var.defined()) {
    running_kernel(running_var)(statistics.var, running_var, count / (count - 1.0), momentum);
    running_var.storage()->bump_version();
  }
}

Tensor normalize(const Tensor& input, const ChannelStatistics& statistics, const Tensor& weight, const Tensor& bias,
                 double eps) {
  const Tensor output = empty(input.sizes(), options_of(input));
  apply_kernel(input)(as_contiguous(input), statistics.mean, statistics.var,
                      weight.defined() ? as_contiguous(weight) : weight, bias.defined() ? as_contiguous(bias) : bias,
                      output, eps, layout_of(input));
  return output;
}

GradientSums gradient_sums(const Tensor& grad, const Tensor& input, const ChannelStatistics& statistics, double eps) {
  GradientSums sums{empty_like(statistics.mean), empty_like(statistics.mean)};
  sums_kernel(input)(as_contiguous(grad), as_contiguous(input), statistics.mean, statistics.var, sums.bias, sums.weight,
                     eps, layout_of(input));
  return sums;
}

Tensor input_gradient(const Tensor& grad, const Tensor& input, const ChannelStatistics& statistics,
                      const Tensor& weight, const GradientSums& sums, double eps) {
  Tensor grad_input = empty(input.sizes(), options_of(input));
  input_grad_kernel(input)(as_contiguous(grad), as_contiguous(input), statistics.mean, statistics.var,
                           weight.defined() ? as_contiguous(weight) : weight, sums.bias, sums.weight, grad_input, eps,
                           statistics.count, layout_of(input));
  return grad_input;
}

}  // namespace lockstep::batch_norm_parts
