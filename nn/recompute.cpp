#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/deferred_statistics.h"

namespace lockstep::nn {
namespace {

struct RecomputeBackward final : Node {
  std::function<Tensor(const Tensor&)> function;
  std::vector<Tensor> parameters;  // those that require gradients
  std::vector<std::uint32_t> versions;
  RandomPosition random;
  autocast::Settings autocasting;
  bool needs_x = false;
  std::vector<std::pair<Module*, bool>> training;  // the modules, and their modes in the forward pass

  const char* name() const override { return "RecomputeBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(1 + parameters.size());
    if (!grads[0].defined()) return result;
    check_unchanged();
    const Tensor x = saved(0).detach();
    if (needs_x) x.set_requires_grad(true);
    Tensor out;
    {
      const EnableGradGuard recording;
      const RandomPositionGuard keys(random);
      const autocast::Resume types(autocasting);
      const StatisticsKept counted;  // in the first pass
      out = function(x);
    }
    if (!out.requires_grad()) return result;
    // Hooks of parameters are left to the pass around this one, which has the whole gradients.
    std::vector<Tensor> inputs = parameters;
    if (needs_x) inputs.push_back(x);
    std::vector<Tensor> found = Engine::gradients({&out, 1}, {&grads[0], 1}, inputs, false, false);
    for (std::size_t i = 0; i < parameters.size(); ++i) result[i + 1] = std::move(found[i]);
    if (needs_x) result[0] = std::move(found.back());
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
    for (const auto& [module, trained] : training)
      LOCKSTEP_CHECK(
          module->is_training() == trained,
          "[recompute] a {} was in {} mode in forward and is in the other mode in backward, which computes it "
          "again; call train() or eval() before forward or after backward",
          module->type_name(), trained ? "training" : "evaluation");
  }
};

struct RecomputeFunctionBackward final : Node {
  std::function<Tensor(const std::vector<Tensor>&)> function;
  std::size_t count = 0;  // of inputs
  RandomPosition random;
  autocast::Settings autocasting;

  const char* name() const override { return "RecomputeFunctionBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(count);
    if (!grads[0].defined()) return result;
    std::vector<Tensor> inputs, wanted;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < count; ++i) {
      inputs.push_back(saved(i).defined() ? saved(i).detach() : Tensor());
      if (!needs_grad(i)) continue;
      inputs.back().set_requires_grad(true);
      wanted.push_back(inputs.back());
      places.push_back(i);
    }
    Tensor out;
    {
      const EnableGradGuard recording;
      const RandomPositionGuard keys(random);
      const autocast::Resume types(autocasting);
      const StatisticsKept counted;
      out = function(inputs);
    }
    if (!out.requires_grad()) return result;
    std::vector<Tensor> found = Engine::gradients({&out, 1}, {&grads[0], 1}, wanted, false, false);
    for (std::size_t i = 0; i < places.size(); ++i) result[places[i]] = std::move(found[i]);
    return result;
  }
};

}  // namespace

Tensor recompute(const std::vector<Tensor>& inputs, std::function<Tensor(const std::vector<Tensor>&)> function) {
  const auto takes_gradient = [](const Tensor& each) { return each.defined() && each.requires_grad(); };
  if (!GradMode::enabled() || std::ranges::none_of(inputs, takes_gradient)) return function(inputs);
  const RandomPosition random = random_position();
  const autocast::Settings autocasting;
  Tensor out;
  {
    const NoGradGuard values_only;
    out = function(inputs).detach();
  }
  std::vector<const Tensor*> sources;
  for (const Tensor& each : inputs) sources.push_back(&each);
  const Tensor* outputs[] = {&out};
  auto* node = record_many<RecomputeFunctionBackward>(outputs, sources);
  if (!node) return out;  // of an integer type
  for (const Tensor& each : inputs) node->save(each);
  node->function = std::move(function);
  node->count = inputs.size();
  node->random = random;
  node->autocasting = autocasting;
  return out;
}

Tensor recompute(Module& module, const Tensor& x, std::function<Tensor(const Tensor&)> function) {
  if (!function) function = [&module](const Tensor& input) { return module(input); };
  std::vector<Tensor> parameters;
  for (const Tensor& p : module.parameters())
    if (p.requires_grad()) parameters.push_back(p);
  if (!GradMode::enabled() || (parameters.empty() && !x.requires_grad())) return function(x);

  const RandomPosition random = random_position();
  const autocast::Settings autocasting;
  Tensor out;
  {
    const NoGradGuard values_only;
    out = function(x).detach();
  }
  std::vector<const Tensor*> inputs{&x};
  for (const Tensor& p : parameters) inputs.push_back(&p);
  const Tensor* outputs[] = {&out};
  auto* node = record_many<RecomputeBackward>(outputs, inputs);
  if (!node) return out;  // of an integer type
  node->save(x);
  node->function = std::move(function);
  for (const Tensor& p : parameters) node->versions.push_back(p.storage()->version());
  node->parameters = std::move(parameters);
  node->random = random;
  node->autocasting = autocasting;
  node->needs_x = x.requires_grad();
  for (Module* each : module.modules()) node->training.emplace_back(each, each->is_training());
  return out;
}

}  // namespace lockstep::nn
