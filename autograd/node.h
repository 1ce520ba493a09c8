#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/core/ref_counted.h"
#include "lockstep/core/small_vector.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class GraphTask;
class Node;

/// Deletes graphs of any depth without recursion. A node that belongs to a leaf lets go of the leaf instead.
void intrusive_delete(Node* node);

/// Points at input number `input` of a backward function. Empty: no gradient is wanted there.
struct Edge {
  IntrusivePtr<Node> node;  ///< whose input it is
  std::uint32_t input = 0;  ///< number among the outputs of the operation that node belongs to
};

/// Gradients of the inputs or outputs of an operation. No allocation for up to three.
using TensorList = SmallVector<Tensor, 3>;

/// A tensor that a Node keeps for backward, with the version its memory had when it was saved. See Node::save().
class SavedTensor {
 public:
  SavedTensor() = default;
  /// Undefined is allowed.
  explicit SavedTensor(Tensor tensor);

  /// Throws Error, naming `node`, if the memory was written since the tensor was saved.
  const Tensor& get(const char* node) const {
    if (tensor_.defined() && tensor_.storage()->version() != version_) [[unlikely]]
      throw_changed(node);
    return tensor_;
  }
  bool defined() const { return tensor_.defined(); }  ///< a tensor was saved
  /// Lets go of the tensor if it shares the memory of `changed`, which was written since: get() goes on to throw.
  void forget(const Tensor& changed);

 private:
  [[noreturn]] void throw_changed(const char* node) const;

  Tensor tensor_;
  std::uint32_t version_ = 0;
};

/// One recorded operation: turns gradients of its outputs into gradients of its inputs. A backward function derives
/// from it, is made by record() (lockstep/autograd/record.h), and runs with recording off; with apply_recorded() its
/// gradients can be functions again.
class Node : public RefCounted {
 public:
  virtual ~Node() {
    if (has_hooks()) [[unlikely]]
      delete_hooks();
  }

  /// "SoftmaxBackward".
  virtual const char* name() const = 0;
  /// `grads` has one entry per output of the operation; an undefined one means zero. Returns one entry per input, in
  /// the order given to record(); those that needs_grad() denies may be left undefined.
  virtual TensorList apply(TensorList grads) = 0;
  /// apply() computes each input's gradient for itself, by an operation of some cost, and none that needs_grad()
  /// denies: a pass may call it for some inputs first and later for the others. See Note [Deferred gradients].
  virtual bool gradients_are_apart() const { return false; }
  /// apply() makes functions of each element of the gradients, which can be joined to what these wait for
  /// (Note [Elementwise chains]).
  virtual bool is_elementwise() const { return false; }
  /// Adds what apply() would give for the only input to `sum`, a contiguous tensor of that shape which nobody else
  /// sees. False: it did not, and apply() is called. Parts of a tensor override it, whose gradients are mostly zeros.
  virtual bool add_to(const Tensor& /*grad*/, const Tensor& /*sum*/) { return false; }
  /// The same as apply() made of recorded operations, called with recording on where gradients are to be functions of
  /// the inputs (GradOptions::create_graph): of `grads`, saved_input() and saved_output() alone. The one here throws
  /// Error: this operation has no second derivative.
  virtual TensorList apply_recorded(TensorList grads);

  /// Keeps tensors that apply() needs, inputs and outputs of the operation alike, undefined ones too; call it after
  /// record(). They go after apply(), unless the graph is retained, and with the node.
  template <typename... Tensors>
  void save(const Tensors&... tensors) {
    (save_one(tensors), ...);
  }

  /// Whether the gradient of input number `input` is wanted by anybody.
  bool needs_grad(std::size_t input) const { return static_cast<bool>(edges_[input].node); }
  /// Where the gradients of the inputs go, in the order given to record().
  const SmallVector<Edge, 3>& edges() const { return edges_; }
  /// Rises with each node made on any thread, so later operations run first in backward(). Nodes of leaves have the
  /// highest bit set.
  std::uint64_t sequence() const { return sequence_; }
  /// A number of the same row that no node has: a point in time.
  static std::uint64_t take_sequence();
  std::uint32_t num_outputs() const { return num_outputs_; }  ///< of the operation; apply() gets as many gradients
  /// Saved tensors were dropped; a second backward() through it is an error.
  bool released() const { return released_.load(std::memory_order_relaxed); }

  /// Called with the whole gradient of output `output` before apply(); see Tensor::register_hook().
  struct GradientHook {
    std::uint64_t key;     ///< for remove_hook()
    std::uint32_t output;  ///< number of the output
    std::shared_ptr<std::function<Tensor(const Tensor&)>> function;
    bool is_last = false;  ///< it runs after those that are not, whenever they were added
  };
  /// Hooks of one output run in the order in which they were added. They may be added and removed while passes of other
  /// threads run, which call those that are there when they come.
  void add_hook(GradientHook hook);
  /// Nothing happens if there is none of that key.
  void remove_hook(std::uint64_t key);

  /// Hides RefCounted's, which may leave the count of a last reference as it is.
  bool release() const { return leaf_ ? release_to_zero() : RefCounted::release(); }

  // From free lists, since every recorded operation makes one.
  void* operator new(std::size_t bytes);
  void operator delete(void* pointer, std::size_t bytes) noexcept;

 protected:
  Node() : Node(nullptr) {}
  /// The i-th tensor given to save(). Throws Error if its memory was written since.
  const Tensor& saved(std::size_t i) const { return saved_[i].get(name()); }
  /// The i-th saved tensor, which holds the values of input number `input`, with the history of that input.
  Tensor saved_input(std::size_t i, std::size_t input) const;
  /// The i-th saved tensor, which holds the values of output number `output`, with this node as its history.
  Tensor saved_output(std::size_t i, std::uint32_t output = 0);

  /// `leaf`: the tensor that owns this node, see Note [Accumulators]; null for an operation's node. A leaf's node is
  /// urgent: it runs before all others that are ready, however old it is, so that gradients are accumulated, and their
  /// hooks called, as soon as they are complete.
  explicit Node(TensorImpl* leaf);

  TensorImpl* leaf() const { return leaf_; }

 private:
  friend class Engine;
  friend class GraphTask;
  friend struct NodeBuilder;
  friend void intrusive_delete(Node* node);

  struct Hooks;
  bool has_hooks() const { return hooks_.load(std::memory_order_acquire) != nullptr; }
  void run_hooks(TensorList& grads) const;
  void delete_hooks();
  void save_one(const Tensor& tensor);
  /// After this a node that had saved something cannot run again. For the pass that has it to itself.
  void release_saved();

  TensorImpl* const leaf_;
  SmallVector<Edge, 3> edges_;
  SmallVector<SavedTensor, 3> saved_;
  std::uint64_t sequence_;
  std::uint32_t num_outputs_ = 0;
  std::atomic<std::uint16_t> guests_ = 0;  ///< passes that use what was saved beside that of task_; see engine.cpp
  bool saves_ = false;                     ///< save() got a defined tensor: a pass that frees the graph frees it
  std::atomic<bool> released_ = false;
  std::atomic<Hooks*> hooks_ = nullptr;  ///< owned; null for most, and made by the first hook

  /// What a pass keeps for a node. See engine.cpp.
  struct Work {
    TensorList pending_grads;
    std::uint32_t dependencies = 0;
  };
  /// The pass whose work space this is, of one thread the innermost, and whether it frees the graph; 0 for none.
  std::atomic<std::uintptr_t> task_ = 0;
  Work work_;
};

}  // namespace lockstep
