#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/deferred_statistics.h"

namespace lockstep::nn {
namespace {

// What was computed once more, from node number `began` on, ends in `inputs`, in leaves that it has made itself, or in
// tensors that would get no gradient.
void check_reads(const Tensor& out, const std::vector<Tensor>& inputs, std::uint64_t began) {
  std::unordered_set<const Node*> known;
  for (const Tensor& input : inputs) known.insert(gradient_edge(input).node.get());
  std::vector<const Node*> next{gradient_edge(out).node.get()};
  while (!next.empty()) {
    const Node* node = next.back();
    next.pop_back();
    if (!node || !known.insert(node).second) continue;
    if (const auto* end = dynamic_cast<const AccumulateGrad*>(node)) {
      LOCKSTEP_CHECK(static_cast<const AutogradMeta*>(end->leaf()->autograd.get())->requires_since > began,
                     "[recompute] the function reads a tensor of shape {} that requires gradients and would get none "
                     "here; make it a parameter of the module that is passed, or list it with the inputs",
                     to_string(end->leaf()->sizes));
      continue;
    }
    for (const Edge& edge : node->edges()) next.push_back(edge.node.get());
  }
}

struct RecomputeBackward final : Node {
  std::function<Tensor(const std::vector<Tensor>&)> function;
  std::size_t count = 0;           // of inputs, which are saved
  std::vector<Tensor> parameters;  // of the module, those that require gradients
  std::vector<std::uint32_t> versions;
  std::vector<Tensor> frozen;  // its others
  RandomPosition random;
  autocast::Settings autocasting;
  std::vector<std::pair<Module*, bool>> training;  // the modules, and their modes in the forward pass

  const char* name() const override { return "RecomputeBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(count + parameters.size());
    if (!grads[0].defined()) return result;
    check_unchanged();
    std::vector<Tensor> inputs, wanted;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < count; ++i) {
      inputs.push_back(saved(i).defined() ? saved(i).detach() : Tensor());
      if (!needs_grad(i)) continue;
      inputs.back().set_requires_grad(true);
      wanted.push_back(inputs.back());
      places.push_back(i);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      wanted.push_back(parameters[i]);
      places.push_back(count + i);
    }
    const std::uint64_t began = Node::take_sequence();
    Tensor out;
    {
      const EnableGradGuard recording;
      const RandomPositionGuard keys(random);
      const autocast::Resume types(autocasting);
      const StatisticsKept counted;  // in the first pass
      out = function(inputs);
    }
    if (!out.requires_grad()) return result;
    check_reads(out, wanted, began);
    // Hooks of parameters are left to the pass around this one, which has the whole gradients.
    std::vector<Tensor> found = Engine::gradients({&out, 1}, {&grads[0], 1}, wanted, false, false);
    for (std::size_t i = 0; i < places.size(); ++i) result[places[i]] = std::move(found[i]);
    return result;
  }

 private:
  void check_unchanged() const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      LOCKSTEP_CHECK(parameters[i].storage()->version() == versions[i],
                     "[recompute] a parameter of shape {} changed between forward and backward",
                     to_string(parameters[i].sizes()));
      LOCKSTEP_CHECK(
          parameters[i].requires_grad(),
          "[recompute] a parameter of shape {} required gradients in forward and was frozen before backward, "
          "which computes the module again; freeze it before forward or after backward",
          to_string(parameters[i].sizes()));
    }
    for (const Tensor& each : frozen)
      LOCKSTEP_CHECK(
          !each.requires_grad(),
          "[recompute] a parameter of shape {} was frozen in forward and requires gradients before backward, "
          "which computes the module again; unfreeze it before forward or after backward",
          to_string(each.sizes()));
    for (const auto& [module, trained] : training)
      LOCKSTEP_CHECK(
          module->is_training() == trained,
          "[recompute] a {} was in {} mode in forward and is in the other mode in backward, which computes it "
          "again; call train() or eval() before forward or after backward",
          module->type_name(), trained ? "training" : "evaluation");
  }
};

Tensor recorded(Module* module, const std::vector<Tensor>& inputs,
                std::function<Tensor(const std::vector<Tensor>&)> function) {
  std::vector<Tensor> parameters, frozen;
  if (module)
    for (const Tensor& p : module->parameters()) (p.requires_grad() ? parameters : frozen).push_back(p);
  const auto takes_gradient = [](const Tensor& each) { return each.defined() && each.requires_grad(); };
  if (!GradMode::enabled() || (parameters.empty() && std::ranges::none_of(inputs, takes_gradient)))
    return function(inputs);

  const RandomPosition random = random_position();
  const autocast::Settings autocasting;
  std::vector<std::uint32_t> versions;
  for (const Tensor& each : inputs) versions.push_back(each.defined() ? each.storage()->version() : 0);
  Tensor out;
  {
    const NoGradGuard values_only;
    out = function(inputs).detach();
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    LOCKSTEP_CHECK(!inputs[i].defined() || inputs[i].storage()->version() == versions[i],
                   "[recompute] the function changed its input {}, of shape {}, in place, of which it is computed once "
                   "more in backward; have it make a new tensor",
                   i, to_string(inputs[i].sizes()));
  std::vector<const Tensor*> sources;
  for (const std::vector<Tensor>* list : {&inputs, static_cast<const std::vector<Tensor>*>(&parameters)})
    for (const Tensor& each : *list) sources.push_back(&each);
  const Tensor* outputs[] = {&out};
  auto* node = record_many<RecomputeBackward>(outputs, sources);
  if (!node) return out;  // of an integer type
  for (const Tensor& each : inputs) node->save(each);
  node->function = std::move(function);
  node->count = inputs.size();
  for (const Tensor& p : parameters) node->versions.push_back(p.storage()->version());
  node->parameters = std::move(parameters);
  node->frozen = std::move(frozen);
  node->random = random;
  node->autocasting = autocasting;
  if (module)
    for (Module* each : module->modules()) node->training.emplace_back(each, each->is_training());
  return out;
}

}  // namespace

Tensor recompute(const std::vector<Tensor>& inputs, std::function<Tensor(const std::vector<Tensor>&)> function) {
  return recorded(nullptr, inputs, std::move(function));
}

Tensor recompute(Module& module, const std::vector<Tensor>& inputs,
                 std::function<Tensor(const std::vector<Tensor>&)> function) {
  return recorded(&module, inputs, std::move(function));
}

Tensor recompute(Module& module, const Tensor& x, std::function<Tensor(const Tensor&)> function) {
  if (!function) function = [&module](const Tensor& input) { return module(input); };
  return recorded(&module, {x},
                  [function = std::move(function)](const std::vector<Tensor>& in) { return function(in[0]); });
}

}  // namespace lockstep::nn
