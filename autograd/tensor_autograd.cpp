// The autograd methods of Tensor.

#include <algorithm>
#include <mutex>

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/retained_gradient.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

namespace {

// True if `function` owns handles on the tensor: each copy of it adds to their number. Other threads may add and drop
// handles meanwhile, hence the repetition.
template <typename Hook>
bool holds(const Hook& function, const Tensor& tensor) {
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t before = tensor.impl()->use_count();
    const Hook copy = function;
    if (tensor.impl()->use_count() <= before) return false;
  }
  return true;
}

}  // namespace

bool Tensor::requires_grad() const {
  return needs_grad(*this);
}

const Tensor& Tensor::set_requires_grad(bool value) const {
  if (!value && (!defined() || !impl()->autograd)) return *this;
  LOCKSTEP_CHECK(defined(), "[set_requires_grad] the tensor is undefined");
  AutogradMeta& meta = ensure_autograd_meta(*this);
  LOCKSTEP_CHECK(!meta.grad_fn, "[set_requires_grad] only leaves can be switched; use detach() to cut the graph");
  LOCKSTEP_CHECK(!value || is_floating_point(),
                 "[set_requires_grad] only floating-point tensors can require gradients; this one is {}",
                 name(dtype()));
  if (value && !meta.requires_grad) meta.requires_since = Node::take_sequence();
  meta.requires_grad = value;
  return *this;
}

bool Tensor::is_leaf() const {
  const AutogradMeta* meta = defined() ? autograd_meta(*this) : nullptr;
  return !meta || !meta->grad_fn;
}

Tensor Tensor::grad() const {
  const AutogradMeta* meta = defined() ? autograd_meta(*this) : nullptr;
  if (!meta) return {};
  return meta->retained ? meta->retained->gradient : meta->grad;
}

void Tensor::set_grad(Tensor grad) const {
  LOCKSTEP_CHECK(defined(), "[set_grad] the tensor is undefined");
  if (grad.defined())
    LOCKSTEP_CHECK(grad.sizes() == sizes() && grad.dtype() == dtype() && grad.device() == device(),
                   "[set_grad] the gradient is {} {} on {}, the tensor {} {} on {}", name(grad.dtype()),
                   to_string(grad.sizes()), to_string(grad.device()), name(dtype()), to_string(sizes()),
                   to_string(device()));
  AutogradMeta& meta = ensure_autograd_meta(*this);
  (meta.retained ? meta.retained->gradient : meta.grad) = std::move(grad);
}

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  LOCKSTEP_CHECK(defined(), "[backward] the tensor is undefined");
  LOCKSTEP_CHECK(
      gradient.defined() || numel() == 1,
      "[backward] a gradient must be given for a tensor of shape {}; it may be left out for one element only",
      to_string(sizes()));
  const Tensor seed = gradient.defined() ? gradient : ones_like(*this);
  Engine::backward({this, 1}, {&seed, 1}, retain_graph);
}

std::uint64_t Tensor::register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const {
  LOCKSTEP_CHECK(defined(), "[register_post_accumulate_grad_hook] the tensor is undefined");
  AutogradMeta& meta = ensure_autograd_meta(*this);
  LOCKSTEP_CHECK(meta.requires_grad && !meta.grad_fn,
                 "[register_post_accumulate_grad_hook] expected a leaf that requires gradients");
  const std::uint64_t key = meta.next_hook_key++;
  LOCKSTEP_CHECK(hook, "[register_post_accumulate_grad_hook] the function is empty");
  LOCKSTEP_CHECK(!holds(hook, *this),
                 "[register_post_accumulate_grad_hook] the hook holds the tensor that is to hold the hook, so neither "
                 "would ever be freed; use the tensor that the hook is called with, or hold a reference");
  const Edge edge = gradient_edge(*this);
  static_cast<AccumulateGrad&>(*edge.node).exclusively([&] {
    meta.hooks.push_back({key, std::make_shared<AutogradMeta::Hook>(std::move(hook)), /*own=*/false});
  });
  return key;
}

std::uint64_t Tensor::register_hook(TensorHook given) const {
  std::function<Tensor(const Tensor&)> hook = std::move(given).function();
  LOCKSTEP_CHECK(requires_grad(), "[register_hook] the tensor does not require gradients");
  LOCKSTEP_CHECK(hook, "[register_hook] the function is empty");
  LOCKSTEP_CHECK(
      !holds(hook, *this),
      "[register_hook] the hook holds the tensor whose history is to hold the hook, so neither would ever be "
      "freed; use the gradient that the hook is called with, or hold a reference");
  const std::uint64_t key = ensure_autograd_meta(*this).next_hook_key++;
  const Edge edge = gradient_edge(*this);
  edge.node->add_hook({key, edge.input, std::make_shared<std::function<Tensor(const Tensor&)>>(std::move(hook))});
  return key;
}

void Tensor::remove_hook(std::uint64_t key) const {
  AutogradMeta* meta = defined() ? autograd_meta(*this) : nullptr;
  if (!meta) return;
  // There is an accumulator if there ever was a hook of it, though the leaf may not require gradients any more.
  std::vector<AutogradMeta::LeafHook> removed;  // what they hold goes when other threads may have the leaf
  if (AccumulateGrad* const accumulator = meta->accumulator.load(std::memory_order_acquire))
    accumulator->exclusively([&] {
      for (const AutogradMeta::LeafHook& hook : meta->hooks)
        if (hook.key == key) removed.push_back(hook);
      std::erase_if(meta->hooks, [&](const AutogradMeta::LeafHook& hook) { return hook.key == key; });
    });
  if (const Edge edge = gradient_edge(*this); edge.node) edge.node->remove_hook(key);
}

const Tensor& Tensor::retain_grad() const {
  LOCKSTEP_CHECK(requires_grad(), "[retain_grad] the tensor does not require gradients");
  AutogradMeta& meta = ensure_autograd_meta(*this);
  if (!meta.grad_fn || meta.retained) return *this;
  meta.retained = std::make_shared<detail::RetainedGradient>();
  meta.grad_fn->add_hook(detail::collect_in(meta.retained, meta.next_hook_key++, meta.output_index));
  return *this;
}

Node::GradientHook detail::collect_in(std::shared_ptr<RetainedGradient> slot, std::uint64_t key, std::uint32_t output) {
  auto collect = [slot = std::move(slot)](const Tensor& grad) {
    grad.storage()->settle();
    const std::lock_guard lock(slot->mutex);
    Tensor& sum = slot->gradient;
    sum = sum.defined() ? add_values(sum, grad) : copy_contiguous(grad);
    return Tensor();
  };
  return {key, output, std::make_shared<std::function<Tensor(const Tensor&)>>(std::move(collect)), /*is_last=*/true};
}

}  // namespace lockstep
