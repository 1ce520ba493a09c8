#pragma once

// How an operation records itself. Included by the .cpp of every op.

#include <initializer_list>
#include <span>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"

namespace lockstep {

/// Wires a node between inputs and outputs.
struct NodeBuilder {
  /// Adds an edge for each input, in order. Undefined inputs get an empty edge.
  static void set_inputs(Node& node, std::span<const Tensor* const> inputs);
  /// Makes `node` the grad_fn of outputs[i], as output i, where that is a floating-point tensor, and fresh. Returns
  /// false if there is none, so that nothing owns the node.
  static bool set_outputs(const IntrusivePtr<Node>& node, std::span<const Tensor* const> outputs);
  /// Before `target`, which was written in place, gets a new history: operations in the history of the other inputs let
  /// go of it where they saved it. It is of no use to them any more, and would own them: `y = a * a; a.add_(y)`.
  static void forget_changed(const Tensor& target, std::span<const Tensor* const> inputs);
  /// After `target` got its new history: what it is a view of gets one from it. Note [Writing through views].
  static void write_through(const Tensor& target);
};

/// True if recording is on and one of the inputs needs gradients.
inline bool should_record(std::initializer_list<const Tensor*> inputs) {
  if (!GradMode::enabled()) return false;
  for (const Tensor* input : inputs)
    if (needs_grad(*input)) return true;
  return false;
}

/// Makes a node of type N for `output = op(inputs...)` if it has to be recorded, and returns it for the op to fill in
/// what backward needs; else returns null, as for an output of an integer type. The output owns the node.
///
///   Tensor out = ...;
///   if (auto* node = record<ExpBackward>(out, {&x})) node->save(out);
///   return out;
template <typename N>
N* record(const Tensor& output, std::initializer_list<const Tensor*> inputs) {
  if (!should_record(inputs)) return nullptr;
  N* raw = new N;
  IntrusivePtr<Node> node(raw);
  NodeBuilder::set_inputs(*raw, {inputs.begin(), inputs.size()});
  const Tensor* outputs[] = {&output};
  return NodeBuilder::set_outputs(node, outputs) ? raw : nullptr;
}

/// The same for any number of inputs and outputs, known only at run time (cat, stack, batch_norm ...).
template <typename N>
N* record_many(std::span<const Tensor* const> outputs, std::span<const Tensor* const> inputs) {
  if (!GradMode::enabled()) return nullptr;
  bool any = false;
  for (const Tensor* input : inputs) any = any || needs_grad(*input);
  if (!any) return nullptr;
  N* raw = new N;
  IntrusivePtr<Node> node(raw);
  NodeBuilder::set_inputs(*raw, inputs);
  return NodeBuilder::set_outputs(node, outputs) ? raw : nullptr;
}

/// After `view`, which repeats no element, was made from x and before it is recorded: what is written to one of them
/// later is part of the other's history. Note [Writing through views].
void note_view(const Tensor& view, const Tensor& x);

/// For operations that write into `target`: throws Error naming `op` if target repeats elements (an expanded tensor),
/// or, while recording, is or shows elements of a leaf that requires gradients, or shares its memory with what
/// note_view() was not told of; bumps the version.
/// Call before writing; then record_in_place<N>().
void check_in_place(const Tensor& target, bool recording, const char* op);

/// Like record(), for `target = op(target, others...)` written in place: list target itself among the inputs.
template <typename N>
N* record_in_place(const Tensor& target, std::initializer_list<const Tensor*> inputs) {
  if (!should_record(inputs)) return nullptr;
  NodeBuilder::forget_changed(target, {inputs.begin(), inputs.size()});
  N* node = record<N>(target, inputs);
  NodeBuilder::write_through(target);
  return node;
}

}  // namespace lockstep
