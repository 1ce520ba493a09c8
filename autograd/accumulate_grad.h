#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// The end of the graph at a leaf: adds the incoming gradient to the leaf's grad(), then calls the leaf's hooks.
///
/// If the leaf already has a gradient, the new one is added *into its memory*, so a gradient that is a view of a flat
/// buffer (a reducer's bucket) stays one. If it has none, the incoming tensor becomes the gradient when nobody else
/// holds its memory, else a copy does. A gradient whose elements share memory, such as an expanded tensor, is replaced
/// by the sum.
///
/// Passes of several threads that end here come one after the other, hooks included: a hook sees the gradient that its
/// pass has left, and may read it, change it or take it away. Passes inside a hook may come here again, or to another
/// leaf: where another thread has that one, they give up the leaf of the hook until they have done there, so that hooks
/// which cross do not wait for each other. A hook must not wait for another thread's pass to the same leaf by itself.
/// Hooks are added and removed in between: one that another thread has removed runs no more when that thread goes on.
///
/// Note [Accumulators]
/// Graphs built on several threads at once may lead to one leaf, so they find its accumulator without a lock. The leaf
/// makes it when it is first used and owns it until the end; the accumulator counts the graphs' edges, and the first of
/// them takes a reference to the leaf, which the last one gives back. So a graph keeps its leaves alive, and no cycle
/// of owners remains when there is no graph. Whoever adds an edge holds the leaf meanwhile: it is never the accumulator
/// of a leaf that is gone.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(TensorImpl* leaf) : Node(leaf) {}
  const char* name() const override { return "AccumulateGrad"; }
  TensorList apply(TensorList grads) override;
  using Node::leaf;
  /// An edge to this node, made by a holder of the leaf.
  Edge edge();
  /// Runs the hooks that a program has registered on the leaf, as apply() does where they are not held.
  void run_held_hooks();
  /// Calls `body`, which may change the list of hooks, while this thread has the leaf for itself as a pass would.
  void exclusively(const std::function<void()>& body);

 private:
  class Turn;

  void run_hooks(Turn& turn, const Tensor& leaf, bool own, bool others);

  std::recursive_mutex mutex_;  ///< of the gradient and the list of hooks, and held while these run
};

namespace detail {

/// A hook of the library's own on a leaf's gradient: it runs in each pass, also where a program's hooks are held. For
/// remove_hook().
std::uint64_t register_own_hook(const Tensor& leaf, std::function<void(const Tensor&)> hook);

/// Note [Held hooks]
/// While it lives, hooks that a program has registered on these leaves do not run in backward(): what a pass leaves
/// there is not the gradient yet, but one rank's, or one slice's of a batch. Who makes the gradient of it runs them
/// then. A program's hook, such as an optimizer's step, so finds what it would find in one process that computes the
/// batch at once.
class HeldHooks {
 public:
  explicit HeldHooks(std::vector<Tensor> leaves);
  ~HeldHooks();
  HeldHooks(const HeldHooks&) = delete;
  HeldHooks& operator=(const HeldHooks&) = delete;

  /// Whether there are any on the leaf with this number.
  bool any(std::size_t leaf) const;
  /// Runs those of one leaf, whose gradient is there, in the order in which they were registered.
  void run(std::size_t leaf) const;

 private:
  std::vector<Tensor> leaves_;
};

}  // namespace detail

}  // namespace lockstep
