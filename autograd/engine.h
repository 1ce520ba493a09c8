#pragma once

#include <functional>
#include <span>

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Runs backward passes. Each call of backward() walks its graph on the calling thread, iteratively, later operations
/// first; ops use the thread pool inside. Calls may nest, in hooks and backward functions, over graphs that they share:
/// the pass around them goes on as if they had run apart. They may run on several threads if they share no graph and no
/// leaf.
class Engine {
 public:
  /// Adds the gradients of `roots`, seeded with `gradients` (same shapes), to the leaves' grad().
  static void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, bool retain_graph = false);

  /// Calls `callback` when the innermost backward() of this thread has reached every leaf, before it returns. Throws
  /// Error outside of a backward pass. Callbacks run in the order given, and not at all if the pass throws.
  static void queue_callback(std::function<void()> callback);

  /// True while a backward() runs on this thread.
  static bool running();
};

/// Like torch::autograd::backward.
void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, bool retain_graph = false);

}  // namespace lockstep
