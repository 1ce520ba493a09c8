#include "lockstep/autograd/ops/batch_norm/batch_norm_parts.h"

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_computation.h"
#include "lockstep/autograd/ops/unary/unary_computation.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
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
constexpr KernelTable<BatchNormApplyLinkedKernel> apply_linked_kernel{"batch_norm", batch_norm_apply_linked_cpu};
constexpr KernelTable<BatchNormPoolKernel> pool_kernel{"batch_norm and max_pool2d", batch_norm_pool_cpu};
constexpr KernelTable<BatchNormSumsKernel> sums_kernel{"batch_norm backward", batch_norm_sums_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(batch_norm_sums_cuda)};
constexpr KernelTable<BatchNormPooledSumsKernel> pooled_sums_kernel{"batch_norm and max_pool2d backward",
                                                                    batch_norm_pooled_sums_cpu};
constexpr KernelTable<BatchNormInputGradKernel> input_grad_kernel{"batch_norm backward", batch_norm_input_grad_cpu,
                                                                  LOCKSTEP_CUDA_KERNEL(batch_norm_input_grad_cuda)};

ChannelLayout layout_of(const Tensor& input) {
  ChannelLayout layout{input.sizes()[0], input.sizes()[1], 1};
  for (int d = 2; d < input.dim(); ++d) layout.inner *= input.sizes()[d];
  return layout;
}

/// The values of `x`, contiguous, as they lie in memory (Note [Channels last]), and how.
struct Values {
  Tensor tensor;
  ChannelLayout layout;
  bool laid_out;

  explicit Values(const Tensor& x) : tensor(channels_last_of(x)), layout(layout_of(x)), laid_out(tensor.defined()) {
    if (laid_out)
      layout = {layout.batch * layout.inner, layout.channels, 1};
    else
      tensor = as_contiguous(x);
  }
};

TensorOptions statistics_options(const Tensor& input) {
  return {.dtype = input.dtype() == kFloat64 ? kFloat64 : kFloat32, .device = input.device()};
}

}  // namespace

ChannelStatistics channel_statistics(const Tensor& input) {
  const ChannelLayout layout = layout_of(input);
  const TensorOptions options = statistics_options(input);
  ChannelStatistics statistics{empty({layout.channels}, options), empty({layout.channels}, options), layout.count()};
  const Values x(input);
  statistics_kernel(input)(x.tensor, statistics.mean, statistics.var, x.layout);
  return statistics;
}

void update_running_statistics(const Tensor& running_mean, const Tensor& running_var,
                               const ChannelStatistics& statistics, double momentum) {
  LOCKSTEP_ASSERT(statistics.count > 1, "running statistics from {} values per channel", statistics.count);
  const auto count = static_cast<double>(statistics.count);
  Tensor dense[] = {running_mean, running_var};
  for (Tensor& each : dense) {
    if (!each.defined()) continue;
    each.storage()->bump_version();
    each = as_contiguous(each);
  }
  running_kernel(statistics.mean)(statistics.mean, statistics.var, dense[0], dense[1], count / (count - 1.0), momentum);
  const Tensor* const running[] = {&running_mean, &running_var};
  for (std::size_t i = 0; i < 2; ++i)
    if (running[i]->defined() && !dense[i].is_same(*running[i])) copy_values(dense[i], *running[i]);
}

namespace {

/// Computed together with elementwise operations.
class NormalizeComputation final : public Computation {
 public:
  NormalizeComputation(const Tensor& x, const Tensor& mean, const Tensor& var, const Tensor& weight, const Tensor& bias,
                       double eps)
      : Computation({x, mean, var, weight, bias}), eps_(eps) {}

 private:
  void compute() override {
    const Tensor& x = input(0);
    const Tensor out = empty_like(x);
    apply_kernel(x)(x, input(1), input(2), input(3), input(4), out, eps_, layout_of(x));
    deliver(0, out);
  }

  bool compute_through(std::span<Computation* const> links) override {
    const Tensor& x = input(0);
    ElementwiseLinks following;
    if (x.dtype() != kFloat32 || !x.device().is_cpu()) return false;
    for (std::size_t i = 0; i < links.size(); ++i)
      if (auto* const pool = dynamic_cast<MaxPool2dComputation*>(links[i]))
        return following.add(links.first(i)) && compute_pooled(following, *pool, links.subspan(i + 1));
    if (!following.add(links)) return false;
    const Tensor out = empty_like(x);
    apply_linked_kernel(x)(x, input(1), input(2), input(3), input(4), out, eps_, layout_of(x), following);
    deliver_to(*links.back(), 0, out);
    return true;
  }

  bool compute_pooled(const ElementwiseLinks& before, MaxPool2dComputation& pool, std::span<Computation* const> after) {
    const Pool2dGeometry& g = pool.geometry();
    const auto* unary = after.empty() ? nullptr : dynamic_cast<const UnaryComputation*>(after[0]);
    if (after.size() > 1 || (!after.empty() && !(unary && unary->op() == UnaryOp::relu))) return false;
    const Tensor& x = input(0);
    if (x.dim() != 4 || !is_max_pool_2x2(g) || g.h != x.sizes()[2] || g.w != x.sizes()[3]) return false;
    const Tensor out = empty({x.sizes()[0], x.sizes()[1], g.oh, g.ow}, options_of(x));
    const Tensor positions =
        wanted_of(pool, 1) ? empty(out.sizes(), {.dtype = kUInt8, .device = x.device()}) : Tensor();
    pool_kernel(x)(x, input(1), input(2), input(3), input(4), eps_, layout_of(x), before, g,
                   after.empty() ? ReluPlace::none : ReluPlace::after, out, positions);
    deliver_to(after.empty() ? static_cast<Computation&>(pool) : *after[0], 0, out);
    if (positions.defined()) deliver_to(pool, 1, positions);
    return true;
  }

  double eps_;
};

}  // namespace

Tensor normalize(const Tensor& input, const ChannelStatistics& statistics, const Tensor& weight, const Tensor& bias,
                 double eps) {
  Tensor mean = statistics.mean, var = statistics.var;
  Tensor factor = weight.defined() ? as_contiguous(weight) : weight,
         shift = bias.defined() ? as_contiguous(bias) : bias;
  const Values values(input);
  if (values.laid_out) {
    const Tensor out = empty_like(values.tensor);
    apply_kernel(input)(values.tensor, mean, var, factor, shift, out, eps, values.layout);
    return from_channels_last(out);
  }
  Tensor x = values.tensor;
  const bool waits = x.dtype() == kFloat32 && x.device().is_cpu() && x.numel() > 0 &&
                     may_wait(x.numel(), {&x, &mean, &var, &factor, &shift});
  const Tensor out = make_intrusive<NormalizeComputation>(x, mean, var, factor, shift, eps)
                         ->add_result(input.sizes(), options_of(input));
  if (!waits) out.storage()->settle();
  return out;
}

GradientSums gradient_sums(const Tensor& grad, const Tensor& input, const ChannelStatistics& statistics, double eps) {
  GradientSums sums{empty_like(statistics.mean), empty_like(statistics.mean)};
  const Values x(input);
  const Tensor incoming = x.laid_out ? to_channels_last(grad) : as_contiguous(grad);
  sums_kernel(input)(incoming, x.tensor, statistics.mean, statistics.var, sums.bias, sums.weight, eps, x.layout);
  return sums;
}

bool is_pooled_gradient(const Tensor& grad, const Tensor& input) {
  if (input.dtype() != kFloat32 || !input.device().is_cpu() || input.dim() != 4) return false;
  const auto* const pooled = pending_result_of<PooledGradient>(grad);
  return pooled && is_max_pool_2x2(pooled->geometry()) && pooled->geometry().h == input.sizes()[2] &&
         pooled->geometry().w == input.sizes()[3] && input.sizes()[2] * input.sizes()[3] > 1;
}

GradientSums pooled_gradient_sums(const Tensor& grad, const Tensor& values, const Tensor& input,
                                  const ChannelStatistics& statistics, double eps) {
  auto* const pooled = pending_result_of<PooledGradient>(grad);
  const auto inputs = pooled ? pooled->pending_inputs() : SmallVector<Tensor, 3>{};
  if (inputs.empty()) {  // somebody has read it meanwhile
    copy_values(grad, values);
    return gradient_sums(values, input, statistics, eps);
  }
  GradientSums sums{empty_like(statistics.mean), empty_like(statistics.mean)};
  pooled_sums_kernel(input)(pooled->geometry(), inputs[0], inputs[1], values, input, statistics.mean, statistics.var,
                            sums.bias, sums.weight, eps, layout_of(input));
  return sums;
}

Tensor input_gradient(const Tensor& grad, const Tensor& input, const ChannelStatistics& statistics,
                      const Tensor& weight, const GradientSums& sums, double eps, bool own) {
  const Values x(input);
  const Tensor incoming = x.laid_out ? to_channels_last(grad) : as_contiguous(grad);
  const Tensor grad_input = own ? grad : empty_like(x.tensor);
  input_grad_kernel(input)(incoming, x.tensor, statistics.mean, statistics.var,
                           weight.defined() ? as_contiguous(weight) : weight, sums.bias, sums.weight, grad_input, eps,
                           statistics.count, x.layout);
  return x.laid_out ? from_channels_last(grad_input) : grad_input;
}

}  // namespace lockstep::batch_norm_parts
