#include "lockstep/nn/unregistered.h"

#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/core/log.h"

namespace lockstep::nn::detail {

void warn_of_unregistered(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs, std::uint64_t began,
                          const Module& module) {
  std::vector<const Node*> next;
  for (const Tensor& output : outputs)
    if (needs_grad(output)) next.push_back(gradient_edge(output).node.get());
  if (next.empty()) return;
  std::unordered_set<const Node*> known;
  const auto know = [&](const Tensor& tensor) {
    if (needs_grad(tensor)) known.insert(gradient_edge(tensor).node.get());
  };
  for (const Tensor& input : inputs) know(input);
  for (const Tensor& parameter : module.parameters()) know(parameter);

  std::string shapes;
  int strangers = 0;
  while (!next.empty()) {
    const Node* node = next.back();
    next.pop_back();
    if (!node || !known.insert(node).second) continue;
    if (const auto* end = dynamic_cast<const AccumulateGrad*>(node)) {
      const auto* meta = static_cast<const AutogradMeta*>(end->leaf()->autograd.get());
      if (meta->requires_since > began || meta->has_optimizer) continue;
      if (++strangers <= 5) shapes += (shapes.empty() ? "" : ", ") + to_string(end->leaf()->sizes);
      continue;
    }
    for (const Edge& edge : node->edges()) next.push_back(edge.node.get());
  }
  if (strangers == 0) return;
  logging::warn(
      "[{}] computes with {} tensor(s) that require gradients and are not among its parameters(), so that its "
      "optimizer does not train them: {}{}. A layer that is a member takes `this` and a name, as in "
      "nn::Linear fc{{this, \"fc\", 3, 3}} (said once)",
      module.type_name(), strangers, shapes, strangers > 5 ? ", ..." : "");
}

}  // namespace lockstep::nn::detail
