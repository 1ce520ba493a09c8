#include <atomic>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/loss/loss.h"
#include "lockstep/autograd/ops/loss/pointwise_loss_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/log.h"

namespace lockstep {

namespace {

constexpr KernelTable<PointwiseLossKernel> loss_kernel{"loss", pointwise_loss_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(pointwise_loss_cuda)};
constexpr KernelTable<PointwiseLossBackwardKernel> loss_backward_kernel{
    "loss backward", pointwise_loss_backward_cpu, LOCKSTEP_CUDA_KERNEL(pointwise_loss_backward_cuda)};

/// In the order of PointwiseLoss.
constexpr const char* kOps[] = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"};
constexpr const char* kNodes[] = {"MseLossBackward", "L1LossBackward", "SmoothL1LossBackward", "HuberLossBackward",
                                  "BinaryCrossEntropyBackward"};

class PointwiseLossBackward final : public Node {
 public:
  const char* name() const override { return kNodes[static_cast<int>(kind)]; }
  TensorList apply(TensorList grads) override {
    TensorList result(2);
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &target = saved(1);
    if (needs_grad(0)) result[0] = empty_like(x);
    if (needs_grad(1)) result[1] = empty_like(x);
    loss_backward_kernel(x)(kind, parameter, as_contiguous(grads[0]), x, target, result[0], result[1], reduction);
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), t = saved_input(1, 1);
    const Tensor grad = reduction == Reduction::mean ? grads[0] / static_cast<double>(x.numel()) : grads[0];
    TensorList result(2);
    if (needs_grad(0)) result[0] = grad * slope(x, t);
    if (needs_grad(1) && kind != PointwiseLoss::bce) result[1] = -(grad * slope(x, t));
    if (needs_grad(1) && kind == PointwiseLoss::bce)
      result[1] = grad * (clamp(log1p(-x), -100.0) - clamp(log(x), -100.0));
    return result;
  }

  PointwiseLoss kind = PointwiseLoss::mse;
  double parameter = 0.0;
  Reduction reduction = Reduction::mean;

 private:
  /// Of an element's loss along the input.
  Tensor slope(const Tensor& x, const Tensor& t) const {
    const Tensor d = x - t;
    switch (kind) {
      case PointwiseLoss::mse:
        return 2.0 * d;
      case PointwiseLoss::l1:
        return sign(d);
      case PointwiseLoss::smooth_l1:
        return where(abs(d) < parameter, d / parameter, sign(d));
      case PointwiseLoss::huber:
        return where(abs(d) <= parameter, d, sign(d) * parameter);
      case PointwiseLoss::bce:
        return d / clamp((1.0 - x) * x, 1e-12);
    }
    return {};
  }
};

Tensor run(PointwiseLoss kind, double parameter, const Tensor& input, const Tensor& target, Reduction reduction) {
  const char* const op = kOps[static_cast<int>(kind)];
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x, const Tensor& t) { return run(kind, parameter, x, t, reduction); },
                             input, target);
  if (kind != PointwiseLoss::bce && input.defined() && target.defined() && input.sizes() != target.sizes()) {
    const Shape sizes = broadcast_shapes(input.sizes(), target.sizes(), op);
    static std::atomic<bool> said{false};
    if (!said.exchange(true))
      logging::warn(
          "[{}] the target's sizes {} are not the input's {}; they broadcast to {}, which is seldom meant: compare "
          "tensors of the same sizes, by view() or squeeze() (said once)",
          op, to_string(target.sizes()), to_string(input.sizes()), to_string(sizes));
    return run(kind, parameter, input.expand(sizes), target.expand(sizes), reduction);
  }
  check_same_kind(input, target, op);
  const Tensor x = as_contiguous(input), y = as_contiguous(target);
  const Tensor loss = empty_loss(input, reduction);
  loss_kernel(x)(kind, parameter, x, y, loss, reduction);
  if (auto* node = record<PointwiseLossBackward>(loss, {&input, &target})) {
    node->save(x, y);
    node->kind = kind;
    node->parameter = parameter;
    node->reduction = reduction;
  }
  return loss;
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, MseLossOptions options) {
  return run(PointwiseLoss::mse, 0.0, input, target, options.reduction);
}

Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  return run(PointwiseLoss::l1, 0.0, input, target, reduction);
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta, Reduction reduction) {
  LOCKSTEP_CHECK(beta >= 0.0, "[smooth_l1_loss] expected a beta of at least 0, found {}", beta);
  return run(beta == 0.0 ? PointwiseLoss::l1 : PointwiseLoss::smooth_l1, beta, input, target, reduction);
}

Tensor huber_loss(const Tensor& input, const Tensor& target, double delta, Reduction reduction) {
  LOCKSTEP_CHECK(delta > 0.0, "[huber_loss] expected a delta above 0, found {}", delta);
  return run(PointwiseLoss::huber, delta, input, target, reduction);
}

Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, const Tensor& weight, Reduction reduction) {
  if (input.defined() && input.is_floating_point() && input.device().is_cpu() && input.numel() > 0) {
    const NoGradGuard values_only;
    LOCKSTEP_CHECK(min(input).item<double>() >= 0.0 && max(input).item<double>() <= 1.0,
                   "[binary_cross_entropy] expected an input of probabilities in [0, 1], found {} and {}; for logits "
                   "there is binary_cross_entropy_with_logits()",
                   min(input).item<double>(), max(input).item<double>());
  }
  if (!weight.defined()) return run(PointwiseLoss::bce, 0.0, input, target, reduction);
  const Tensor each = run(PointwiseLoss::bce, 0.0, input, target, Reduction::none) * weight;
  return reduction == Reduction::none ? each : reduction == Reduction::sum ? sum(each) : mean(each);
}

}  // namespace lockstep
