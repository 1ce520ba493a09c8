#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class AccumulateGrad;
namespace detail {
struct RetainedGradient;
}

/// What autograd knows of a tensor. Leaves have no grad_fn; those that require gradients get an accumulator on demand.
struct AutogradMeta final : AutogradMetaBase {
  /// Called with the leaf each time its gradient has been accumulated.
  using Hook = std::function<void(const Tensor&)>;

  bool requires_grad = false;                         ///< of a leaf; results follow from grad_fn
  bool has_optimizer = false;                         ///< of a leaf: an optimizer was made with it
  std::uint32_t output_index = 0;                     ///< which output of grad_fn this is
  IntrusivePtr<Node> grad_fn;                         ///< what computed the tensor; null for a leaf
  Tensor grad;                                        ///< a leaf's accumulated gradient; undefined before the first
  std::atomic<AccumulateGrad*> accumulator{nullptr};  ///< owned; made on demand, see Note [Accumulators]
  struct LeafHook {
    std::uint64_t key;               ///< for Tensor::remove_hook()
    std::shared_ptr<Hook> function;  ///< called with the leaf
    bool own;                        ///< the library's, which runs even where a program's are held
  };
  std::vector<LeafHook> hooks;                   ///< in the order they were added
  std::atomic<std::uint64_t> next_hook_key = 1;  ///< key of the next hook
  std::atomic<int> hooks_held = 0;               ///< by so many detail::HeldHooks
  /// Of a result: where retain_grad() collects its gradient, shared with the hook that does. Null without.
  std::shared_ptr<detail::RetainedGradient> retained;
  std::uint64_t requires_since = 0;  ///< of a leaf: Node::take_sequence() when it began to require gradients

  ~AutogradMeta() override;

  // From a free list, since every recorded operation makes one.
  void* operator new(std::size_t bytes);
  void operator delete(void* pointer) noexcept;
};

namespace detail {
/// Gives a view the history that what it shows has got. Note [Writing through views].
void renew_history(const Tensor& view);
}  // namespace detail

/// The tensor's autograd state, or null.
inline AutogradMeta* autograd_meta(const Tensor& tensor) {
  const TensorImpl& impl = *tensor.impl();
  if (impl.viewed && impl.viewed->writes.load(std::memory_order_acquire) != impl.writes.load(std::memory_order_acquire))
      [[unlikely]]
    detail::renew_history(tensor);
  return static_cast<AutogradMeta*>(tensor.impl()->autograd.get());
}
/// The tensor's autograd state, made if need be.
AutogradMeta& ensure_autograd_meta(const Tensor& tensor);

/// Where gradients of `tensor` go: its grad_fn, its accumulator, or an empty edge if it needs none.
Edge gradient_edge(const Tensor& tensor);

/// True if the tensor or anything it was computed from requires gradients.
inline bool needs_grad(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  const AutogradMeta* meta = autograd_meta(tensor);
  return meta && (meta->requires_grad || meta->grad_fn);
}

}  // namespace lockstep
