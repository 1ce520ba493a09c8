#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/loss/bce_with_logits_kernels.h"
#include "lockstep/autograd/ops/loss/loss.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

namespace {

constexpr const char* kOp = "binary_cross_entropy_with_logits";
constexpr KernelTable<BceWithLogitsKernel> bce_kernel{kOp, bce_with_logits_cpu,
                                                      LOCKSTEP_CUDA_KERNEL(bce_with_logits_cuda)};
constexpr KernelTable<BceWithLogitsBackwardKernel> bce_backward_kernel{
    "binary_cross_entropy_with_logits backward", bce_with_logits_backward_cpu,
    LOCKSTEP_CUDA_KERNEL(bce_with_logits_backward_cuda)};

class BceWithLogitsBackward final : public Node {
 public:
  const char* name() const override { return "BceWithLogitsBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(2);
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &target = saved(1), &weight = saved(2), &pos_weight = saved(3);
    if (needs_grad(0)) result[0] = empty_like(x);
    if (needs_grad(1)) result[1] = empty_like(x);
    bce_backward_kernel(x)(as_contiguous(grads[0]), x, target, weight, pos_weight, result[0], result[1], reduction);
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), t = saved_input(1, 1);
    const Tensor &weight = saved(2), &pos_weight = saved(3);
    Tensor grad = reduction == Reduction::mean ? grads[0] / static_cast<double>(x.numel()) : grads[0];
    if (weight.defined()) grad = grad * weight;
    TensorList result(2);
    if (needs_grad(0)) {
      const Tensor factor = pos_weight.defined() ? (pos_weight - 1.0) * t + 1.0 : Tensor();
      const Tensor falling = sigmoid(-x);
      result[0] = grad * ((1.0 - t) - (factor.defined() ? factor * falling : falling));
    }
    if (needs_grad(1)) result[1] = grad * (pos_weight.defined() ? (pos_weight - 1.0) * softplus(-x) - x : -x);
    return result;
  }

  Reduction reduction = Reduction::mean;
};

/// The weight, checked and repeated to the input's shape; undefined stays undefined.
Tensor spread(const Tensor& weight, const Tensor& input, const char* what) {
  if (!weight.defined()) return weight;
  LOCKSTEP_CHECK(weight.dtype() == input.dtype() && weight.device() == input.device(),
                 "[{}] expected {} to be {} on {} like the input, found {} on {}", kOp, what, name(input.dtype()),
                 to_string(input.device()), name(weight.dtype()), to_string(weight.device()));
  LOCKSTEP_CHECK(!needs_grad(weight), "[{}] {} takes no gradient; pass {}.detach()", kOp, what, what);
  LOCKSTEP_CHECK(broadcast_shapes(weight.sizes(), input.sizes(), kOp) == input.sizes(),
                 "[{}] expected {} to broadcast to the input's shape {}, found {}", kOp, what, to_string(input.sizes()),
                 to_string(weight.sizes()));
  if (weight.sizes() == input.sizes()) return as_contiguous(weight);
  const Tensor full = empty(input.sizes(), options_of(input));
  copy_values(weight, full);
  return full;
}

}  // namespace

Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const BceWithLogitsOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const auto&... t) { return binary_cross_entropy_with_logits(t..., options); }, input,
                             target);
  check_same_kind(input, target, kOp);
  const Tensor x = as_contiguous(input), t = as_contiguous(target);
  const Tensor weight = spread(options.weight, input, "weight");
  const Tensor pos_weight = spread(options.pos_weight, input, "pos_weight");
  const Tensor loss = empty_loss(input, options.reduction);
  bce_kernel(x)(x, t, weight, pos_weight, loss, options.reduction);
  if (auto* node = record<BceWithLogitsBackward>(loss, {&input, &target})) {
    node->save(x, t, weight, pos_weight);
    node->reduction = options.reduction;
  }
  return loss;
}

}  // namespace lockstep
