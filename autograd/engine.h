#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

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
  static void run(GraphTask& task, const std::vector<Edge>& edges, std::span<const Tensor> gradients, bool retain_graph,
                  std::vector<Tensor>* collected, bool hooks_of_leaves, bool create_graph);
};

}  // namespace lockstep
