#include "lockstep/autograd/ops/mse_loss/mse_loss.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/mse_loss/mse_loss_kernels.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

namespace {

constexpr KernelTable<MseLossKernel> mse_loss_kernel{"mse_loss", mse_loss_cpu, LOCKSTEP_CUDA_KERNEL(mse_loss_cuda)};
constexpr KernelTable<MseLossBackwardKernel> mse_loss_backward_kernel{"mse_loss backward", mse_loss_backward_cpu,
                                                                      LOCKSTEP_CUDA_KERNEL(mse_loss_backward_cuda)};

class MseLossBackward final : public Node {
 public:
  const char* name() const override { return "MseLossBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(2);
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &target = saved(1);
    if (needs_grad(0)) result[0] = empty_like(x);
    if (needs_grad(1)) result[1] = empty_like(x);
    mse_loss_backward_kernel(x)(as_contiguous(grads[0]), x, target, result[0], result[1], reduction);
    return result;
  }

  Reduction reduction = Reduction::mean;
};

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, MseLossOptions options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const auto&... t) { return mse_loss(t..., options); }, input, target);
  if (input.defined() && target.defined() && input.sizes() != target.sizes()) {
    const Shape sizes = broadcast_shapes(input.sizes(), target.sizes(), "mse_loss");
    return mse_loss(input.expand(sizes), target.expand(sizes), options);
  }
  check_same_kind(input, target, "mse_loss");
  const Tensor x = as_contiguous(input), y = as_contiguous(target);
  const Tensor loss = empty_loss(input, options.reduction);
  mse_loss_kernel(x)(x, y, loss, options.reduction);
  if (auto* node = record<MseLossBackward>(loss, {&input, &target})) {
    node->save(x, y);
    node->reduction = options.reduction;
  }
  return loss;
}

}  // namespace lockstep
