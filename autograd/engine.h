#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Note [Deferred gradients]
/// A backward pass in two parts, as zero-bubble pipelines need them (Qi et al., "Zero bubble pipeline parallelism",
/// 2023): Engine::backward_to() computes what leads to one leaf, the input of a stage, and leaves the gradients of all
/// others to Engine::backward_deferred(). A node that has both sorts of inputs runs twice, each time for the inputs of
/// one sort, if it says that this costs no more (Node::gradients_are_apart()); else it runs once, and its results for
/// the others wait. What a leaf's gradient is added up from, and in which order, is the same as in one pass.
///
/// Between the two, the graph is kept alive by this, and nobody else may run through it.
class DeferredGradients {
 public:
  bool empty() const { return nodes_.empty() && edges_.empty(); }  ///< there is nothing left

 private:
  friend class Engine;
  friend class GraphTask;
  /// A node and those of its edges that are left.
  struct OfNode {
    IntrusivePtr<Node> node;
    SmallVector<Edge, 3> edges;
    TensorList values;  // what has arrived at the node, or has been computed for these edges; empty: nothing has
  };
  std::vector<OfNode> nodes_;
  std::vector<Edge> edges_;  // of roots
  std::vector<Tensor> gradients_;
};

/// Runs backward passes. Each pass walks its graph on the calling thread, iteratively, later operations first; ops use
/// the thread pool inside. Passes may nest, in hooks and backward functions, over graphs that they share: the pass
/// around them goes on as if they had run apart. They may run on several threads at once: leaves may be shared, whose
/// gradients add up in any order, and graphs that all of the passes retain. Where one of two that meet frees what both
/// reach, the later one throws Error, or each of them if they come at the same time, before it has run anything.
class Engine {
 public:
  /// Whether the pass that this thread is in retains its graph; for backward functions that run one of their own.
  static bool retains_graph();

  /// Adds the gradients of `roots`, seeded with `gradients` (same shapes), to the leaves' grad().
  static void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, bool retain_graph = false);

  /// The first part of a backward(): the gradient of the leaf `input`, which is given back and does not change grad();
  /// undefined if no path leads there. Frees what the second part does not need. See Note [Deferred gradients].
  static Tensor backward_to(const Tensor& input, std::span<const Tensor> roots, std::span<const Tensor> gradients,
                            DeferredGradients& deferred);
  /// The second part, once: the gradients of all other leaves, and of `roots` besides, none or more.
  static void backward_deferred(DeferredGradients deferred, std::span<const Tensor> roots = {},
                                std::span<const Tensor> gradients = {});

  /// The gradients of `roots` at `inputs`, leaves or results, undefined where no path leads; no grad() changes. Without
  /// `hooks_of_leaves`, hooks of leaves do not run: somebody else hands them the whole gradient. With `create_graph`
  /// the pass is recorded, and the graph kept.
  static std::vector<Tensor> gradients(std::span<const Tensor> roots, std::span<const Tensor> gradients,
                                       std::span<const Tensor> inputs, bool retain_graph, bool hooks_of_leaves,
                                       bool create_graph = false);

  /// Calls `callback` when the innermost pass of this thread has reached every leaf, before it returns. Throws Error
  /// outside of a pass. Callbacks run in the order given, and not at all if the pass throws.
  static void queue_callback(std::function<void()> callback);

  /// True while a pass runs on this thread.
  static bool running();

 private:
  /// True if the node added its gradient to what has arrived at the node it leads to; see Node::add_to().
  static bool added_to_pending(GraphTask& task, Node& node, const TensorList& grads);
  static void leave_results(DeferredGradients::OfNode& left, TensorList& results);
  static void finish_node(GraphTask& task, Node& node, TensorList& left, TensorList& results);
  static void run_node(GraphTask& task, Node& node, TensorList& grads, bool create_graph, TensorList& results);
  static void run(GraphTask& task, const std::vector<Edge>& edges, std::span<const Tensor> gradients, bool retain_graph,
                  std::vector<Tensor>* collected, bool hooks_of_leaves, bool create_graph);
};

}  // namespace lockstep
