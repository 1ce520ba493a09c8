#include "lockstep/autograd/accumulate_grad.h"

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep {

AccumulateGrad::AccumulateGrad(const Tensor& leaf) : Node(/*urgent=*/true), leaf_(leaf.impl_ptr()) {}

AccumulateGrad::~AccumulateGrad() {
  if (auto* meta = static_cast<AutogradMeta*>(leaf_->autograd.get()); meta && meta->accumulator == this)
    meta->accumulator = nullptr;
}

TensorList AccumulateGrad::apply(TensorList grads) {
  Tensor incoming = std::move(grads[0]);
  grads.clear();
  if (!incoming.defined()) return {};
  const Tensor leaf(leaf_);
  AutogradMeta& meta = ensure_autograd_meta(leaf);
  LOCKSTEP_ASSERT(incoming.sizes() == leaf.sizes() && incoming.dtype() == leaf.dtype(),
                  "a {} gradient of shape {} reached a {} leaf of shape {}", lockstep::name(incoming.dtype()),
                  to_string(incoming.sizes()), lockstep::name(leaf.dtype()), to_string(leaf.sizes()));
  if (meta.grad.defined()) {
    add_values_(meta.grad, incoming);
    meta.grad.storage()->bump_version();
  } else if (incoming.is_contiguous() && incoming.impl()->use_count() == 1 && incoming.storage()->use_count() == 1) {
    meta.grad = std::move(incoming);
  } else {
    meta.grad = copy_contiguous(incoming);
  }
  // A hook may remove itself or others: walk over a copy.
  if (!meta.hooks.empty()) {
    const auto hooks = meta.hooks;
    for (const auto& [key, hook] : hooks) hook(leaf);
  }
  return {};
}

}  // namespace lockstep
