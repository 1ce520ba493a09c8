#pragma once

#include <cstdint>

#include "lockstep/core/ref_counted.h"
#include "lockstep/core/small_vector.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class Node;

/// Deletes graphs of any depth without recursion.
void intrusive_delete(Node* node);

/// Points at input number `input` of a backward function. Empty: no gradient is wanted there.
struct Edge {
  IntrusivePtr<Node> node;  ///< whose input it is
  std::uint32_t input = 0;  ///< number among the outputs of the operation that node belongs to
};

/// Gradients of the inputs or outputs of an operation. No allocation for up to three.
using TensorList = SmallVector<Tensor, 3>;

/// One recorded operation: turns gradients of its outputs into gradients of its inputs.
/// Runs with recording off (there is no double backward).
class Node : public RefCounted {
 public:
  virtual ~Node() = default;

  /// "SoftmaxBackward".
  virtual const char* name() const = 0;
  /// `grads` has one entry per output of the operation; an undefined one means zero. Returns one entry per input, in
  /// the order given to record(); those that needs_grad() denies may be left undefined.
  virtual TensorList apply(TensorList grads) = 0;
  /// Drops saved tensors; called after apply() unless the graph is retained.
  virtual void release_saved() {}

  /// Whether the gradient of input number `input` is wanted by anybody.
  bool needs_grad(std::size_t input) const { return static_cast<bool>(edges_[input].node); }
  /// Where the gradients of the inputs go, in the order given to record().
  const SmallVector<Edge, 3>& edges() const { return edges_; }
  /// Rises with each node made on any thread, so later operations run first in backward(). Urgent nodes have the
  /// highest bit set.
  std::uint64_t sequence() const { return sequence_; }
  std::uint32_t num_outputs() const { return num_outputs_; }  ///< of the operation; apply() gets as many gradients
  /// Saved tensors were dropped; a second backward() through it is an error.
  bool released() const { return released_; }

 protected:
  /// An urgent node runs before all others that are ready, however old it is: gradients are accumulated, and their
  /// hooks called, as soon as they are complete.
  explicit Node(bool urgent = false);

 private:
  friend class Engine;
  friend struct NodeBuilder;

  SmallVector<Edge, 3> edges_;
  std::uint64_t sequence_;
  std::uint32_t num_outputs_ = 0;
  bool released_ = false;

  // The engine's work space: valid while a backward() runs on this node. See engine.cpp.
  TensorList pending_grads_;
  std::uint32_t dependencies_ = 0;
  bool visited_ = false;
};

}  // namespace lockstep
