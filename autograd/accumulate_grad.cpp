#include "lockstep/autograd/accumulate_grad.h"

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep {

Edge AccumulateGrad::edge() {
  if (retain_first()) leaf()->retain();
  return {IntrusivePtr<Node>::adopt(this), 0};
}

TensorList AccumulateGrad::apply(TensorList grads) {
  Tensor incoming = std::move(grads[0]);
  grads.clear();
  if (!incoming.defined()) return {};
  incoming.storage()->settle();
  const Tensor leaf(IntrusivePtr<TensorImpl>(this->leaf()));
  AutogradMeta& meta = ensure_autograd_meta(leaf);
  LOCKSTEP_ASSERT(incoming.sizes() == leaf.sizes() && incoming.dtype() == leaf.dtype(),
                  "a {} gradient of shape {} reached a {} leaf of shape {}", lockstep::name(incoming.dtype()),
                  to_string(incoming.sizes()), lockstep::name(leaf.dtype()), to_string(leaf.sizes()));
  const std::lock_guard lock(mutex_);
  if (meta.grad.defined() && !meta.grad.is_contiguous() &&
      strides_may_overlap(meta.grad.sizes(), meta.grad.strides())) {
    meta.grad = add_values(meta.grad, incoming);
  } else if (meta.grad.defined()) {
    add_values_(meta.grad, incoming);
    meta.grad.storage()->bump_version();
  } else if (incoming.is_contiguous() && incoming.impl()->use_count() == 1 && incoming.storage()->use_count() == 1) {
    meta.grad = std::move(incoming);
  } else {
    meta.grad = copy_contiguous(incoming);
  }
  // A hook may remove itself or others: walk over a copy of the list, whose functions are the same objects.
  if (!meta.hooks.empty()) {
    const auto hooks = meta.hooks;
    for (const auto& [key, hook] : hooks) (*hook)(leaf);
  }
  return {};
}

}  // namespace lockstep
