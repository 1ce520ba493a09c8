#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

Module::Hooks& Module::hooks_for(bool given, const char* function) {
  LOCKSTEP_CHECK(given, "[{}::{}] the hook is empty; expected a function", type_name(), function);
  LOCKSTEP_CHECK(!dynamic_cast<detail::HidesForward*>(this),
                 "[{}::{}] a hook sees one tensor, and the forward() of a ModuleOf may take others; expected a module "
                 "derived from nn::Module",
                 type_name(), function);
  if (!hooks_) hooks_ = std::make_unique<Hooks>();
  return *hooks_;
}

std::uint64_t Module::register_forward_pre_hook(std::function<void(Module&, Tensor&)> hook) {
  Hooks& hooks = hooks_for(hook != nullptr, "register_forward_pre_hook");
  hooks.before.emplace_back(hooks.next_key, std::move(hook));
  return hooks.next_key++;
}

std::uint64_t Module::register_forward_hook(std::function<void(Module&, const Tensor&, Tensor&)> hook) {
  Hooks& hooks = hooks_for(hook != nullptr, "register_forward_hook");
  hooks.after.emplace_back(hooks.next_key, std::move(hook));
  return hooks.next_key++;
}

std::uint64_t Module::register_full_backward_hook(std::function<void(Module&, Tensor&, const Tensor&)> hook) {
  Hooks& hooks = hooks_for(hook != nullptr, "register_full_backward_hook");
  hooks.backward.emplace_back(hooks.next_key, std::move(hook));
  return hooks.next_key++;
}

void Module::remove_hook(std::uint64_t key) {
  if (!hooks_) return;
  std::erase_if(hooks_->backward, [&](const auto& hook) { return hook.first == key; });
  std::erase_if(hooks_->before, [&](const auto& hook) { return hook.first == key; });
  std::erase_if(hooks_->after, [&](const auto& hook) { return hook.first == key; });
}

void Module::set_call_hook(std::function<void()> hook) {
  if (!hooks_ && !hook) return;
  if (!hooks_) hooks_ = std::make_unique<Hooks>();
  hooks_->on_call = std::move(hook);
}

// Hooks may add and remove hooks, so copies of them run.
void Module::run_hooks_before(Tensor& x) {
  const auto hooks = hooks_->before;
  for (const auto& [key, hook] : hooks) {
    hook(*this, x);
    LOCKSTEP_CHECK(x.defined(), "[{}::register_forward_pre_hook] a hook left no input", type_name());
  }
}

void Module::run_hooks_after(const Tensor& x, Tensor& out) {
  const auto hooks = hooks_->after;
  for (const auto& [key, hook] : hooks) {
    hook(*this, x, out);
    LOCKSTEP_CHECK(out.defined(), "[{}::register_forward_hook] a hook left no result", type_name());
  }
}

// Views stand before and behind the module, so that x may be used elsewhere, and the result may be x or be saved.
Tensor Module::forward_with_backward_hooks(Tensor x) {
  const auto gradient_of_result = std::make_shared<Tensor>();
  const auto run = [this, gradient_of_result](Tensor gradient_of_x) {
    const auto hooks = hooks_ ? hooks_->backward : decltype(hooks_->backward)();
    for (const auto& [key, hook] : hooks) hook(*this, gradient_of_x, *gradient_of_result);
    *gradient_of_result = {};
    return gradient_of_x;
  };
  const bool input_counts = x.requires_grad();
  if (input_counts) {
    x = x.view(x.sizes());
    x.register_hook(run);
  }
  Tensor out = forward(std::move(x));
  if (!out.requires_grad()) return out;
  out = out.view(out.sizes());
  out.register_hook([run, gradient_of_result, input_counts](const Tensor& gradient) {
    *gradient_of_result = gradient;
    if (!input_counts) run({});
  });
  return out;
}

}  // namespace lockstep::nn
