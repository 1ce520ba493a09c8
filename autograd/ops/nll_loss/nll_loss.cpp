#include "lockstep/autograd/ops/nll_loss/nll_loss.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/nll_loss/nll_loss_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

namespace {

constexpr KernelTable<NllLossKernel> nll_loss_kernel{"nll_loss", nll_loss_cpu, LOCKSTEP_CUDA_KERNEL(nll_loss_cuda)};
constexpr KernelTable<NllLossBackwardKernel> nll_loss_backward_kernel{"nll_loss backward", nll_loss_backward_cpu,
                                                                      LOCKSTEP_CUDA_KERNEL(nll_loss_backward_cuda)};

class NllLossBackward final : public Node {
 public:
  const char* name() const override { return "NllLossBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(1);
    if (!grads[0].defined()) return result;
    result[0] = of_scores(grads[0], saved(0), saved(1), saved(2));
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const KeptNode self(this);
    const auto at = [target = SavedTensor(saved(0))] { return target.get("NllLossBackward"); };
    const auto map = [self, at, weight = saved(1), total = saved(2)](const Tensor& grad) {
      return self->of_scores(grad, at(), weight, total);
    };
    const auto transposed = [at, weight = saved(1), problem = problem](const Tensor& x) {
      return nll_loss(x, at(),
                      {.reduction = problem.reduction, .ignore_index = problem.ignore_index, .weight = weight});
    };
    return {apply_linear(grads[0], {map, transposed})};
  }

  Shape sizes;
  TensorOptions options;
  NllLossProblem problem;

 private:
  Tensor of_scores(const Tensor& grad, const Tensor& target, const Tensor& weight, const Tensor& total_weight) const {
    const Tensor out = empty(sizes, options);
    nll_loss_backward_kernel(out)(as_contiguous(grad), target, weight, total_weight, out, problem);
    return out;
  }
};

}  // namespace

Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const NllLossOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x) { return nll_loss(x, target, options); }, log_probs);
  const ClassRows rows = check_class_targets(log_probs, target, options.weight, "nll_loss");
  const NllLossProblem problem{rows, options.reduction, options.ignore_index};
  const Tensor targets = as_contiguous(target);
  const Tensor weight = options.weight.defined() ? as_contiguous(options.weight) : Tensor();
  const TensorOptions like = options_of(log_probs);
  const Tensor loss = empty(options.reduction == Reduction::none ? target.sizes() : Shape{}, like);
  const Tensor total_weight = empty({}, {.dtype = kFloat64, .device = log_probs.device()});
  nll_loss_kernel(log_probs)(as_contiguous(log_probs), targets, weight, loss, total_weight, problem);
  if (auto* node = record<NllLossBackward>(loss, {&log_probs})) {
    node->save(targets, weight, total_weight);
    node->sizes = log_probs.sizes();
    node->options = like;
    node->problem = problem;
  }
  return loss;
}

}  // namespace lockstep
