#include "lockstep/autograd/record.h"

#include <unordered_set>
#include <vector>

#include "lockstep/autograd/anomaly.h"
#include "lockstep/core/check.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/profile_modules.h"

namespace lockstep {

void NodeBuilder::set_inputs(Node& node, std::span<const Tensor* const> inputs) {
  if (profile::enabled()) [[unlikely]]
    profile::remember_module(&node);
  node.edges_.reserve(inputs.size());
  if (AnomalyMode::enabled())
    for (const Tensor* input : inputs) detail::check_input(*input);
  for (const Tensor* input : inputs) node.edges_.push_back(gradient_edge(*input));
}

void NodeBuilder::set_outputs(const IntrusivePtr<Node>& node, std::span<const Tensor* const> outputs) {
  node->num_outputs_ = static_cast<std::uint32_t>(outputs.size());
  std::uint32_t index = 0;
  for (const Tensor* output : outputs) {
    if (output->defined() && output->is_floating_point()) {
      AutogradMeta& meta = ensure_autograd_meta(*output);
      meta.grad_fn = node;
      meta.output_index = index;
    }
    ++index;
  }
}

void NodeBuilder::forget_changed(const Tensor& target, std::span<const Tensor* const> inputs) {
  std::vector<const Node*> stack;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const Node* node) {
    if (node && seen.insert(node).second) stack.push_back(node);
  };
  for (const Tensor* input : inputs)
    if (!input->is_same(target)) visit(gradient_edge(*input).node.get());
  while (!stack.empty()) {
    auto* node = const_cast<Node*>(stack.back());
    stack.pop_back();
    for (SavedTensor& saved : node->saved_) saved.forget(target);
    for (const Edge& edge : node->edges_) visit(edge.node.get());
  }
}

void check_in_place(const Tensor& target, bool recording, const char* op) {
  LOCKSTEP_CHECK(target.defined(), "[{}] the tensor to change is undefined", op);
  const AutogradMeta* meta = autograd_meta(target);
  if (GradMode::enabled() && meta && meta->requires_grad && !meta->grad_fn)
    detail::throw_error(fmt::format(
        "[{}] a leaf that requires gradients cannot be changed in place while recording; use a NoGradGuard", op));
  if (recording && target.impl()->is_view)
    detail::throw_error(
        fmt::format("[{}] a view cannot be changed in place while recording; change the tensor it views, as "
                    "x.index_put_({{i}}, values) does for x[i] = values, or gather the parts and stack() them",
                    op));
  target.storage()->before_change();
  // A view keeps the history it was made with, which would not explain its new values: its gradients would be wrong.
  if (recording && target.storage()->use_count() > 1)
    detail::throw_error(
        fmt::format("[{}] the tensor cannot be changed in place while recording: it shares its memory with a view or a "
                    "result saved for backward; change a clone(), or use the op that returns a new tensor",
                    op));
  target.storage()->bump_version();
}

}  // namespace lockstep
