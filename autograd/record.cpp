#include "lockstep/autograd/record.h"

#include <utility>

#include "lockstep/autograd/anomaly.h"
#include "lockstep/autograd/retained_gradient.h"
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

bool NodeBuilder::set_outputs(const IntrusivePtr<Node>& node, std::span<const Tensor* const> outputs) {
  node->num_outputs_ = static_cast<std::uint32_t>(outputs.size());
  std::uint32_t index = 0;
  bool any = false;
  for (const Tensor* output : outputs) {
    if (output->defined() && output->is_floating_point()) {
      AutogradMeta& meta = ensure_autograd_meta(*output);
      any = true;
      meta.grad_fn = node;
      meta.output_index = index;
      if (meta.retained) [[unlikely]] {
        // What was written since retain_grad() has another gradient; the hook of the old history keeps to the old slot.
        Tensor so_far = meta.retained->gradient;
        meta.retained = std::make_shared<detail::RetainedGradient>();
        meta.retained->gradient = std::move(so_far);
        node->add_hook(detail::collect_in(meta.retained, meta.next_hook_key++, index));
      }
    }
    ++index;
  }
  return any;
}

}  // namespace lockstep
