#include "lockstep/autograd/autograd_meta.h"

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/core/check.h"

namespace lockstep {

AutogradMeta& ensure_autograd_meta(const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.defined(), "an undefined tensor takes no part in autograd");
  auto& slot = tensor.impl()->autograd;
  if (!slot) slot = std::make_unique<AutogradMeta>();
  return static_cast<AutogradMeta&>(*slot);
}

Edge gradient_edge(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  AutogradMeta* meta = autograd_meta(tensor);
  if (!meta) return {};
  if (meta->grad_fn) return {meta->grad_fn, meta->output_index};
  if (!meta->requires_grad) return {};
  if (meta->accumulator) return {IntrusivePtr<Node>(meta->accumulator), 0};
  IntrusivePtr<Node> node(new AccumulateGrad(tensor));
  meta->accumulator = static_cast<AccumulateGrad*>(node.get());
  return {std::move(node), 0};
}

}  // namespace lockstep
