#include "nn/optim/optimizer.h"

#include <unordered_set>

#include "autograd/grad_mode.h"
#include "core/check.h"
#include "core/copy.h"
#include "core/factories.h"
#include "core/profile.h"

namespace lockstep::optim {
namespace {

bool follows(const Optimizer::Run& last, const Optimizer::Run& next, std::size_t element, std::size_t state_element) {
  const auto after = [&](const void* p, std::size_t size) {
    return static_cast<const char*>(p) + static_cast<std::size_t>(last.numel) * size;
  };
  if (last.step != next.step || after(last.parameter, element) != next.parameter ||
      after(last.gradient, element) != next.gradient)
    return false;
  for (int s = 0; s < 2; ++s)
    if (last.state[s] && after(last.state[s], state_element) != next.state[s]) return false;
  return true;
}

}  // namespace

Optimizer::Optimizer(std::vector<Tensor> parameters, double lr, std::vector<std::string> state_names, const char* type)
    : parameters_(std::move(parameters)), steps_(parameters_.size(), 0), state_names_(std::move(state_names)), lr_(lr) {
  LOCKSTEP_CHECK(!parameters_.empty(), "[{}] expected at least one parameter, found none; pass model.parameters()",
                 type);
  LOCKSTEP_CHECK(lr >= 0.0, "[{}] expected lr >= 0, found {}", type, lr);
  std::unordered_set<const TensorImpl*> seen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    LOCKSTEP_CHECK(p.defined() && p.is_floating_point() && p.is_leaf(),
                   "[{}] parameter {} is not a floating-point leaf; pass model.parameters()", type, i);
    LOCKSTEP_CHECK(seen.insert(p.impl()).second, "[{}] parameter {} was passed twice", type, i);
  }
}

DType Optimizer::state_dtype(DType parameter) {
  return parameter == kFloat16 || parameter == kBFloat16 ? kFloat32 : parameter;
}

void Optimizer::set_lr(double lr) {
  LOCKSTEP_CHECK(lr >= 0.0, "[{}] expected lr >= 0, found {}", name(), lr);
  lr_ = lr;
}

void Optimizer::zero_grad(bool set_to_none) {
  for (const Tensor& p : parameters_) {
    const Tensor grad = p.grad();
    if (!grad.defined()) continue;
    if (set_to_none)
      p.set_grad({});
    else
      fill_values(grad, 0.0);
  }
}

void Optimizer::make_state() {
  if (!groups_.empty()) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    Group* group = nullptr;
    for (Group& g : groups_)
      if (g.dtype == p.dtype() && g.device == p.device()) group = &g;
    if (!group) group = &groups_.emplace_back(Group{p.dtype(), p.device(), {}, {0}, {}});
    group->members.push_back(i);
    group->offsets.push_back(group->offsets.back() + p.numel());
  }
  for (Group& group : groups_)
    for (std::size_t s = 0; s < state_names_.size(); ++s)
      group.buffers.push_back(
          zeros({group.offsets.back()}, {.dtype = state_dtype(group.dtype), .device = group.device}));
}

void Optimizer::step() {
  const NoGradGuard no_grad;
  const profile::Scope scope("optimizer", name());
  make_state();
  for (Group& group : groups_) step_group(group);
}

void Optimizer::step_group(Group& group) {
  const std::size_t element = element_size(group.dtype);
  const std::size_t state_element = element_size(state_dtype(group.dtype));
  std::vector<Run> runs;
  std::vector<Tensor> held;  // temporary copies, alive until the kernel has run
  std::vector<std::pair<Tensor, Tensor>> copy_back;
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    const std::size_t i = group.members[m];
    const Tensor& p = parameters_[i];
    LOCKSTEP_CHECK(
        p.dtype() == group.dtype && p.device() == group.device,
        "[{}] parameter {} was {} on {} at the first step and is {} on {} now; move or cast the model first, "
        "then construct the optimizer",
        name(), i, lockstep::name(group.dtype), to_string(group.device), lockstep::name(p.dtype()),
        to_string(p.device()));
    Tensor grad = p.grad();
    if (!grad.defined() || p.numel() == 0) continue;
    if (!grad.is_contiguous()) held.push_back(grad = copy_contiguous(grad));
    Tensor value = p;
    if (!p.is_contiguous()) {
      value = copy_contiguous(p.detach());
      copy_back.emplace_back(value, p);
    }
    Run run{value.raw_data(), grad.raw_data(), {nullptr, nullptr}, p.numel(), ++steps_[i]};
    for (std::size_t s = 0; s < group.buffers.size(); ++s)
      run.state[s] =
          static_cast<char*>(group.buffers[s].raw_data()) + static_cast<std::size_t>(group.offsets[m]) * state_element;
    if (!runs.empty() && follows(runs.back(), run, element, state_element))
      runs.back().numel += run.numel;
    else
      runs.push_back(run);
    p.storage()->bump_version();
  }
  if (runs.empty()) return;
  update(parameters_[group.members.front()], runs);
  for (const auto& [value, target] : copy_back) copy_values(value, target);
}

Tensor Optimizer::state_view(const Group& group, std::size_t member, std::size_t which) const {
  const Shape& sizes = parameters_[group.members[member]].sizes();
  return group.buffers[which].as_strided(sizes, contiguous_strides(sizes), group.offsets[member]);
}

OptimizerState Optimizer::state() const {
  const_cast<Optimizer*>(this)->make_state();  // all zero before the first step: the same as absent
  OptimizerState out;
  out.type = name();
  out.tensors.push_back({"steps", tensor(steps_)});
  for (const Group& group : groups_)
    for (std::size_t s = 0; s < state_names_.size(); ++s)
      for (std::size_t m = 0; m < group.members.size(); ++m)
        out.tensors.push_back({fmt::format("{}.{}", state_names_[s], group.members[m]), state_view(group, m, s)});
  out.scalars = {{"lr", lr_}, {"momentum", momentum()}};
  return out;
}

void Optimizer::load_state(const OptimizerState& state) {
  LOCKSTEP_CHECK(state.type == name(), "[{}] the state to load is that of {}; construct the same optimizer", name(),
                 state.type.empty() ? "no optimizer" : state.type);
  std::map<std::string, Tensor> given;
  for (const nn::NamedTensor& t : state.tensors) given.emplace(t.name, t.tensor);
  const OptimizerState own = this->state();
  std::string problems;
  const auto complain = [&](std::string text) { problems += (problems.empty() ? "" : "; ") + std::move(text); };
  for (const nn::NamedTensor& t : own.tensors) {
    const auto found = given.find(t.name);
    if (found == given.end()) {
      complain("missing " + t.name);
    } else if (found->second.sizes() != t.tensor.sizes() || found->second.dtype() != t.tensor.dtype()) {
      complain(fmt::format("{} is {} {}, expected {} {}", t.name, lockstep::name(found->second.dtype()),
                           to_string(found->second.sizes()), lockstep::name(t.tensor.dtype()),
                           to_string(t.tensor.sizes())));
    }
  }
  for (const auto& [key, value] : given) {
    bool known = false;
    for (const nn::NamedTensor& t : own.tensors) known = known || t.name == key;
    if (!known) complain("unexpected " + key);
  }
  for (const char* key : {"lr", "momentum"})
    if (!state.scalars.contains(key)) complain(std::string("missing ") + key);
  LOCKSTEP_CHECK(problems.empty(), "[{}] the state to load does not fit: {}", name(), problems);

  for (const nn::NamedTensor& t : own.tensors)
    if (t.name != "steps") copy_values(given.at(t.name), t.tensor);
  steps_ = given.at("steps").to_vector<std::int64_t>();
  set_lr(state.scalars.at("lr"));
  if (state.scalars.at("momentum") != momentum()) set_momentum(state.scalars.at("momentum"));
}

}  // namespace lockstep::optim
