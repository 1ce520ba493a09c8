#include "lockstep/autograd/accumulate_grad.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep {

/// Has the leaf for itself. On this thread, the turns in whose hooks this one began are given up while it waits.
class AccumulateGrad::Turn {
 public:
  explicit Turn(AccumulateGrad& node) : node_(node) {
    if (node_.mutex_.try_lock()) return;
    given_up_ = std::exchange(in_hooks_, {});
    for (AccumulateGrad* each : given_up_) each->mutex_.unlock();
    node_.mutex_.lock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (runs_hooks_) in_hooks_.pop_back();
    node_.mutex_.unlock();
    if (given_up_.empty()) return;
    // In one order on every thread, since each holds some while it waits for the next.
    std::vector<AccumulateGrad*> in_order = given_up_;
    std::ranges::sort(in_order, std::less<>());
    for (AccumulateGrad* each : in_order) each->mutex_.lock();
    in_hooks_ = std::move(given_up_);
  }
  void begin_hooks() {
    in_hooks_.push_back(&node_);
    runs_hooks_ = true;
  }

 private:
  static thread_local std::vector<AccumulateGrad*> in_hooks_;  // whose turns this thread has, outermost first
  AccumulateGrad& node_;
  bool runs_hooks_ = false;
  std::vector<AccumulateGrad*> given_up_;
};

thread_local std::vector<AccumulateGrad*> AccumulateGrad::Turn::in_hooks_;

Edge AccumulateGrad::edge() {
  if (retain_first()) leaf()->retain();
  return {IntrusivePtr<Node>::adopt(this), 0};
}

void AccumulateGrad::exclusively(const std::function<void()>& body) {
  const Turn turn(*this);
  body();
}

TensorList AccumulateGrad::apply(TensorList grads) {
  Tensor incoming = std::move(grads[0]);
  grads.clear();
  if (!incoming.defined()) return {};
  incoming.storage()->settle();
  const Tensor leaf(IntrusivePtr<TensorImpl>(this->leaf()));
  AutogradMeta& meta = ensure_autograd_meta(leaf);
  LOCKSTEP_CHECK(
      incoming.sizes() == leaf.sizes() && incoming.dtype() == leaf.dtype() && incoming.device() == leaf.device(),
      "[backward] expected a {} gradient of shape {} on {} for a leaf, found {} of shape {} on {}; a leaf that was "
      "given another value, device or type since forward() needs a forward() of its own, and a backward function "
      "returns gradients like the inputs",
      lockstep::name(leaf.dtype()), to_string(leaf.sizes()), to_string(leaf.device()), lockstep::name(incoming.dtype()),
      to_string(incoming.sizes()), to_string(incoming.device()));
  Turn turn(*this);
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
  if (!meta.hooks.empty()) run_hooks(turn, leaf, /*own=*/true, /*others=*/meta.hooks_held == 0);
  return {};
}

void AccumulateGrad::run_hooks(Turn& turn, const Tensor& leaf, bool own, bool others) {
  turn.begin_hooks();
  // A hook may remove itself or others: walk over a copy of the list, whose functions are the same objects.
  const auto hooks = ensure_autograd_meta(leaf).hooks;
  for (const AutogradMeta::LeafHook& hook : hooks)
    if (hook.own ? own : others) (*hook.function)(leaf);
}

void AccumulateGrad::run_held_hooks() {
  const Tensor leaf(IntrusivePtr<TensorImpl>(this->leaf()));
  Turn turn(*this);
  run_hooks(turn, leaf, /*own=*/false, /*others=*/true);
}

namespace detail {

std::uint64_t register_own_hook(const Tensor& leaf, std::function<void(const Tensor&)> hook) {
  AutogradMeta& meta = ensure_autograd_meta(leaf);
  const std::uint64_t key = meta.next_hook_key++;
  const Edge edge = gradient_edge(leaf);
  static_cast<AccumulateGrad&>(*edge.node).exclusively([&] {
    meta.hooks.push_back({key, std::make_shared<AutogradMeta::Hook>(std::move(hook)), /*own=*/true});
  });
  return key;
}

HeldHooks::HeldHooks(std::vector<Tensor> leaves) : leaves_(std::move(leaves)) {
  for (const Tensor& leaf : leaves_) ++ensure_autograd_meta(leaf).hooks_held;
}

HeldHooks::~HeldHooks() {
  for (const Tensor& leaf : leaves_) --ensure_autograd_meta(leaf).hooks_held;
}

bool HeldHooks::any(std::size_t leaf) const {
  AutogradMeta& meta = ensure_autograd_meta(leaves_[leaf]);
  AccumulateGrad* const accumulator = meta.accumulator.load(std::memory_order_acquire);
  bool any = false;
  if (accumulator)  // else there never was a hook
    accumulator->exclusively(
        [&] { any = std::ranges::any_of(meta.hooks, [](const AutogradMeta::LeafHook& hook) { return !hook.own; }); });
  return any;
}

void HeldHooks::run(std::size_t leaf) const {
  if (!any(leaf)) return;
  const NoGradGuard no_grad;
  const Edge edge = gradient_edge(leaves_[leaf]);
  if (!edge.node) return;  // it does not require gradients any more
  static_cast<AccumulateGrad&>(*edge.node).run_held_hooks();
}

}  // namespace detail

}  // namespace lockstep
