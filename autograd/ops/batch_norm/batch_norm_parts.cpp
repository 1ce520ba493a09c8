#include "lockstep/autograd/ops/batch_norm/batch_norm_parts.h"

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/autograd/ops/binary/binary_computation.h"
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
constexpr KernelTable<BatchNormApplyFollowedKernel> apply_followed_kernel{
    "batch_norm", nullptr, LOCKSTEP_CUDA_KERNEL(batch_norm_apply_followed_cuda)};
constexpr KernelTable<BatchNormApplyLinkedKernel> apply_linked_kernel{"batch_norm", batch_norm_apply_linked_cpu};
constexpr KernelTable<BatchNormPoolKernel> pool_kernel{"batch_norm and max_pool2d", batch_norm_pool_cpu};
constexpr KernelTable<BatchNormSumsKernel> sums_kernel{"batch_norm backward", batch_norm_sums_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(batch_norm_sums_cuda)};
constexpr KernelTable<BatchNormSumsThroughKernel> sums_through_kernel{
    "batch_norm backward", nullptr, LOCKSTEP_CUDA_KERNEL(batch_norm_sums_through_cuda)};
constexpr KernelTable<BatchNormPooledSumsKernel> pooled_sums_kernel{"batch_norm and max_pool2d backward",
                                                                    batch_norm_pooled_sums_cpu};
constexpr KernelTable<BatchNormInputGradKernel> input_grad_kernel{"batch_norm backward", batch_norm_input_grad_cpu,
                                                                  LOCKSTEP_CUDA_KERNEL(batch_norm_input_grad_cuda)};
constexpr KernelTable<BatchNormInputGradThroughKernel> input_grad_through_kernel{
    "batch_norm backward", nullptr, LOCKSTEP_CUDA_KERNEL(batch_norm_input_grad_through_cuda)};

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

namespace {

/// Running statistics that are about to be changed, contiguous; store() after that.
struct Dense {
  const RunningStatistics& running;
  BatchNormRunning values;

  Dense(const RunningStatistics& running, std::int64_t count)
      : running(running),
        values{changing(running.mean), changing(running.var), changing(running.batches), 1.0, running.momentum} {
    values.unbiased = static_cast<double>(count) / (static_cast<double>(count) - 1.0);
  }
  void store() const {
    if (values.mean.defined() && !values.mean.is_same(running.mean)) copy_values(values.mean, running.mean);
    if (values.var.defined() && !values.var.is_same(running.var)) copy_values(values.var, running.var);
  }

 private:
  static Tensor changing(const Tensor& statistics) {
    if (!statistics.defined()) return statistics;
    statistics.storage()->bump_version();
    return as_contiguous(statistics);
  }
};

}  // namespace

ChannelStatistics channel_statistics(const Tensor& input, const RunningStatistics& running) {
  const ChannelLayout layout = layout_of(input);
  const TensorOptions options = statistics_options(input);
  ChannelStatistics statistics{empty({layout.channels}, options), empty({layout.channels}, options), layout.count()};
  const Values x(input);
  const bool tracks = running.mean.defined() || running.var.defined() || running.batches.defined();
  if (statistics.count <= 1 || !tracks) {
    statistics_kernel(input)(x.tensor, statistics.mean, statistics.var, x.layout, BatchNormRunning());
    return statistics;
  }
  const Dense dense(running, statistics.count);
  statistics_kernel(input)(x.tensor, statistics.mean, statistics.var, x.layout, dense.values);
  dense.store();
  return statistics;
}

void update_running_statistics(const RunningStatistics& running, const ChannelStatistics& statistics) {
  LOCKSTEP_ASSERT(statistics.count > 1, "running statistics from {} values per channel", statistics.count);
  const Dense dense(running, statistics.count);
  running_kernel(statistics.mean)(statistics.mean, statistics.var, dense.values);
  dense.store();
}

namespace {

/// Computed together with elementwise operations.
class NormalizeComputation final : public Computation {
 public:
  /// Of the values `x` of a tensor of `sizes`, as they lie in memory.
  NormalizeComputation(const Values& x, const Shape& sizes, const Tensor& mean, const Tensor& var, const Tensor& weight,
                       const Tensor& bias, double eps)
      : Computation({x.tensor, mean, var, weight, bias}), layout_(x.layout), laid_out_(x.laid_out), eps_(eps) {
    if (!laid_out_) return;
    set_follows_laid_out();
    set_takes_sum(sizes);
  }

 private:
  void compute() override {
    const Tensor& x = input(0);
    if (laid_out_) return deliver(0, copy_contiguous(in_order_of_channels(compute_channels_last({}))));
    const Tensor out = empty_like(x);
    apply_kernel(x)(x, input(1), input(2), input(3), input(4), out, eps_, layout_);
    deliver(0, out);
  }

  Tensor compute_channels_last(std::span<Computation* const> links) override {
    BatchNormFollowing following;
    if (!laid_out_ || !find_following(links, following)) return {};
    const Tensor& x = input(0);
    Tensor out = empty_like(x);
    apply_followed_kernel(x)(x, input(1), input(2), input(3), input(4), out, eps_, layout_, following);
    return out;
  }

  static bool find_following(std::span<Computation* const> links, BatchNormFollowing& following) {
    for (const Computation* const link : links) {
      if (const auto* sum = dynamic_cast<const SumComputation*>(link)) {
        if (following.other.defined() || !sum->is_channels_last()) return false;
        following.other = sum->other();
      } else if (const auto* unary = dynamic_cast<const UnaryComputation*>(link);
                 unary && unary->op() == UnaryOp::relu) {
        (following.other.defined() ? following.relu_after : following.relu_before) = true;
      } else {
        return false;
      }
    }
    return true;
  }

  bool compute_through(std::span<Computation* const> links) override {
    const Tensor& x = input(0);
    if (laid_out_) {
      const Tensor out = compute_channels_last(links);
      if (out.defined()) deliver_to(*links.back(), 0, copy_contiguous(in_order_of_channels(out)));
      return out.defined();
    }
    ElementwiseLinks following;
    if (x.dtype() != kFloat32 || !x.device().is_cpu()) return false;
    for (std::size_t i = 0; i < links.size(); ++i)
      if (auto* const pool = dynamic_cast<MaxPool2dComputation*>(links[i]))
        return following.add(links.first(i)) && compute_pooled(following, *pool, links.subspan(i + 1));
    if (!following.add(links)) return false;
    const Tensor out = empty_like(x);
    apply_linked_kernel(x)(x, input(1), input(2), input(3), input(4), out, eps_, layout_, following);
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
    pool_kernel(x)(x, input(1), input(2), input(3), input(4), eps_, layout_, before, g,
                   after.empty() ? ReluPlace::none : ReluPlace::after, out, positions);
    deliver_to(after.empty() ? static_cast<Computation&>(pool) : *after[0], 0, out);
    if (positions.defined()) deliver_to(pool, 1, positions);
    return true;
  }

  ChannelLayout layout_;
  bool laid_out_;
  double eps_;
};

}  // namespace

Tensor normalize(const Tensor& input, const ChannelStatistics& statistics, const Tensor& weight, const Tensor& bias,
                 double eps) {
  Tensor mean = statistics.mean, var = statistics.var;
  Tensor factor = weight.defined() ? as_contiguous(weight) : weight,
         shift = bias.defined() ? as_contiguous(bias) : bias;
  Values x(input);
  const bool takes = x.laid_out || (x.tensor.dtype() == kFloat32 && x.tensor.device().is_cpu());
  const bool waits =
      takes && x.tensor.numel() > 0 && may_wait(x.tensor.numel(), {&x.tensor, &mean, &var, &factor, &shift});
  if (x.laid_out && !waits) {
    const Tensor out = empty_like(x.tensor);
    apply_kernel(input)(x.tensor, mean, var, factor, shift, out, eps, x.layout);
    return from_channels_last(out);
  }
  const Tensor out = make_intrusive<NormalizeComputation>(x, input.sizes(), mean, var, factor, shift, eps)
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

namespace {

ChannelLayout layout_of(const ThroughRelu& grad) {
  const Shape& last = grad.input.sizes();
  return {last[0] * last[1] * last[2], last[3], 1};
}

}  // namespace

GradientSums gradient_sums(const ThroughRelu& grad, const ChannelStatistics& statistics, double eps) {
  GradientSums sums{empty_like(statistics.mean), empty_like(statistics.mean)};
  sums_through_kernel(grad.input)(grad.values, grad.input, statistics.mean, statistics.var, grad.weight, grad.bias,
                                  true, sums.bias, sums.weight, eps, layout_of(grad));
  return sums;
}

Tensor input_gradient(const ThroughRelu& grad, const ChannelStatistics& statistics, const GradientSums& sums,
                      double eps) {
  const Tensor grad_input = empty_like(grad.input);
  input_grad_through_kernel(grad.input)(grad.values, grad.input, statistics.mean, statistics.var, grad.weight,
                                        grad.bias, true, sums.bias, sums.weight, grad_input, eps, statistics.count,
                                        layout_of(grad));
  return from_channels_last(grad_input);
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
