#include "lockstep/nn/recompute.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/random.h"

namespace lockstep::nn {
namespace {

/// Makes parameters leaves of their own for its lifetime: a backward pass inside of another one then collects its
/// gradients without touching the outer one's leaves.
class FreshLeaves {
 public:
  explicit FreshLeaves(const std::vector<Tensor>& parameters) : parameters_(parameters) {
    for (const Tensor& p : parameters_) {
      outer_.push_back(std::move(p.impl()->autograd));
      p.set_requires_grad(true);
    }
  }
  ~FreshLeaves() {
    for (std::size_t i = 0; i < outer_.size(); ++i) parameters_[i].impl()->autograd = std::move(outer_[i]);
  }
  FreshLeaves(const FreshLeaves&) = delete;
  FreshLeaves& operator=(const FreshLeaves&) = delete;

 private:
  const std::vector<Tensor>& parameters_;
  std::vector<std::unique_ptr<AutogradMetaBase>> outer_;
};

struct RecomputeBackward final : Node {
  std::function<Tensor(const Tensor&)> function;
  std::vector<Tensor> parameters;  // those that require gradients
  std::vector<std::uint32_t> versions;
  RandomPosition random;
  autocast::Settings autocasting;
  bool needs_x = false;

  const char* name() const override { return "RecomputeBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(1 + parameters.size());
    if (!grads[0].defined()) return result;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      LOCKSTEP_CHECK(parameters[i].storage()->version() == versions[i],
                     "[recompute] a parameter of shape {} changed between forward and backward",
                     to_string(parameters[i].sizes()));
    const Tensor x = saved(0).detach();
    if (needs_x) x.set_requires_grad(true);
    const FreshLeaves leaves(parameters);
    {
      const EnableGradGuard recording;
      Tensor out;
      {
        const RandomPositionGuard keys(random);
        const autocast::Resume types(autocasting);
        out = function(x);
      }
      out.backward(grads[0]);
    }
    if (needs_x) result[0] = x.grad();
    for (std::size_t i = 0; i < parameters.size(); ++i) result[i + 1] = parameters[i].grad();
    return result;
  }
};

}  // namespace

Tensor recompute(Module& module, const Tensor& x, std::function<Tensor(const Tensor&)> function) {
  if (!function) function = [&module](const Tensor& input) { return module.forward(input); };
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
  node->save(x);
  node->function = std::move(function);
  for (const Tensor& p : parameters) node->versions.push_back(p.storage()->version());
  node->parameters = std::move(parameters);
  node->random = random;
  node->autocasting = autocasting;
  node->needs_x = x.requires_grad();
  return out;
}

}  // namespace lockstep::nn
