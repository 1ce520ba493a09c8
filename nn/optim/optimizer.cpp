#include "lockstep/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile.h"
#include "lockstep/nn/optim/step_table.h"

namespace lockstep::optim {
namespace {

bool follows(const Optimizer::Run& last, const Optimizer::Run& next, std::size_t element, std::size_t state_element) {
  const auto after = [&](const void* p, std::size_t size) {
    return static_cast<const char*>(p) + static_cast<std::size_t>(last.numel) * size;
  };
  if (last.step != next.step || after(last.parameter, element) != next.parameter ||
      after(last.gradient, element) != next.gradient)
    return false;
  for (int s = 0; s < Optimizer::kMaxState; ++s)
    if (last.state[s] && after(last.state[s], state_element) != next.state[s]) return false;
  return true;
}

void check_lr(double lr, const char* type) {
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0.0, "[{}] expected a finite lr >= 0, found {}", type, lr);
}

// An element in two parameters would be updated twice a step. Gaps between a parameter's elements count as its own only
// where both have none.
void check_apart(const std::vector<Tensor>& parameters, const char* type) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].numel() > 0) order.push_back(i);
  const auto begin = [&](std::size_t i) { return static_cast<const char*>(parameters[i].raw_data()); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::less<>()(begin(a), begin(b)); });
  for (std::size_t k = 1; k < order.size(); ++k) {
    const std::size_t first = order[k - 1], second = order[k];
    const Tensor &a = parameters[first], &b = parameters[second];
    if (a.device() != b.device()) continue;
    LOCKSTEP_CHECK(!a.is_same(b), "[{}] parameter {} was passed twice", type, second);
    const bool dense = a.is_contiguous() && b.is_contiguous();
    const bool apart = begin(first) != begin(second) && (!dense || begin(second) >= begin(first) + a.nbytes());
    LOCKSTEP_CHECK(apart, "[{}] parameters {} and {} share their memory; pass one of them", type, first, second);
  }
}

}  // namespace

Optimizer::Optimizer(std::vector<Tensor> parameters, double lr, std::vector<std::string> state_names, const char* type)
    : parameters_(std::move(parameters)), steps_(parameters_.size(), 0), state_names_(std::move(state_names)), lr_(lr) {
  LOCKSTEP_CHECK(!parameters_.empty(), "[{}] expected at least one parameter, found none; pass model.parameters()",
                 type);
  check_lr(lr, type);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    LOCKSTEP_CHECK(p.defined() && p.is_floating_point() && p.is_leaf(),
                   "[{}] parameter {} is not a floating-point leaf; pass model.parameters()", type, i);
  }
  check_apart(parameters_, type);
}

DType Optimizer::state_dtype(DType parameter) {
  return parameter == kFloat16 || parameter == kBFloat16 ? kFloat32 : parameter;
}

void Optimizer::set_lr(double lr) {
  check_lr(lr, name());
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
      if (g.plan.dtype == p.dtype() && g.device == p.device()) group = &g;
    if (!group) {
      group = &groups_.emplace_back();
      group->plan.dtype = p.dtype();
      group->device = p.device();
      group->offsets = {0};
    }
    group->members.push_back(i);
    group->offsets.push_back(group->offsets.back() + p.numel());
  }
  for (Group& group : groups_) {
    const TensorOptions options{.dtype = state_dtype(group.plan.dtype), .device = group.device};
    for (std::size_t s = 0; s < state_names_.size(); ++s)
      group.buffers.push_back(zeros({group.offsets.back()}, options));
    group.dense_parameters.resize(group.members.size());
    group.dense_gradients.resize(group.members.size());
    // Of the size it may ever need: a captured graph goes on reading this one.
    if (group.device.is_cuda())
      group.plan.table = zeros({step_table_words(group.members.size())}, {.dtype = kInt64, .device = group.device});
  }
}

bool Optimizer::is_capturing(const Device& device) const {
  return device.is_cuda() && cuda::is_capturing(device.index);
}

void Optimizer::prepare_step() {
  const NoGradGuard no_grad;
  make_state();
  for (Group& group : groups_)
    if (group.device.is_cuda()) prepare(group);
}

void Optimizer::step() {
  const NoGradGuard no_grad;
  const profile::Scope scope("optimizer", name());
  LOCKSTEP_CHECK(!groups_.empty() || !is_capturing(parameters_.front().device()),
                 "[{}] the first step cannot be captured, because it makes the optimizer's state; call step() or "
                 "prepare_step() once before the capture",
                 name());
  make_state();
  for (Group& group : groups_) {
    if (is_capturing(group.device))
      make_plan(group, false);
    else
      prepare(group);
    launch(group);
  }
}

// What has to be updated, and with `count` as a new step.
void Optimizer::make_plan(Group& group, bool count) {
  const DType dtype = group.plan.dtype;
  const std::size_t element = element_size(dtype), state_element = element_size(state_dtype(dtype));
  std::vector<Run>& runs = group.plan.runs;
  runs.clear();
  group.copies_in.clear();
  group.copies_out.clear();
  const auto dense = [](Tensor& kept, const Tensor& like) -> const Tensor& {
    if (!kept.defined()) kept = empty(like.sizes(), options_of(like));
    return kept;
  };
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    const std::size_t i = group.members[m];
    const Tensor& p = parameters_[i];
    LOCKSTEP_CHECK(
        p.dtype() == dtype && p.device() == group.device,
        "[{}] parameter {} was {} on {} at the first step and is {} on {} now; move or cast the model first, "
        "then construct the optimizer",
        name(), i, lockstep::name(dtype), to_string(group.device), lockstep::name(p.dtype()), to_string(p.device()));
    const Tensor grad = p.grad();
    if (!grad.defined() || p.numel() == 0) continue;
    Tensor value = p.detach(), gradient = grad;
    if (!grad.is_contiguous()) {
      gradient = dense(group.dense_gradients[m], grad);
      group.copies_in.emplace_back(grad, gradient);
    }
    if (!p.is_contiguous()) {
      value = dense(group.dense_parameters[m], p);
      group.copies_in.emplace_back(p, value);
      group.copies_out.emplace_back(value, p);
    }
    if (count) ++steps_[i];
    Run run{value.raw_data(), gradient.raw_data(), {}, p.numel(), steps_[i], {}};
    for (std::size_t s = 0; s < group.buffers.size(); ++s)
      run.state[s] =
          static_cast<char*>(group.buffers[s].raw_data()) + static_cast<std::size_t>(group.offsets[m]) * state_element;
    if (!runs.empty() && follows(runs.back(), run, element, state_element)) {
      runs.back().numel += run.numel;
    } else {
      scalars(run.step, run.scalars);
      runs.push_back(run);
    }
    p.storage()->bump_version();
  }
}

void Optimizer::prepare(Group& group) {
  make_plan(group, true);
  if (!group.device.is_cuda()) return;
  const std::vector<Run>& runs = group.plan.runs;
  std::vector<std::uint64_t> words(static_cast<std::size_t>(step_table_words(runs.size())));
  auto* table = reinterpret_cast<StepTable*>(words.data());
  auto* rows = reinterpret_cast<StepTableRun*>(table + 1);
  *table = {static_cast<std::int64_t>(runs.size()), 0};
  for (std::size_t r = 0; r < runs.size(); ++r) {
    rows[r] = {runs[r], table->chunks};
    table->chunks += step_chunks(runs[r].numel);
  }
  cuda::store(words.data(), group.plan.table.raw_data(), words.size() * 8, group.device.index);
}

void Optimizer::launch(Group& group) {
  if (group.plan.runs.empty()) return;
  for (const auto& [from, to] : group.copies_in) copy_values(from, to);
  update(parameters_[group.members.front()], group.plan);
  for (const auto& [from, to] : group.copies_out) copy_values(from, to);
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
  out.scalars = settings();
  out.scalars.insert({{"lr", lr_}, {"momentum", momentum()}});
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
  for (const auto& [key, value] : settings())
    if (const auto found = state.scalars.find(key); found != state.scalars.end() && found->second != value)
      complain(
          fmt::format("it was saved with {} {}, this optimizer was constructed with {}", key, found->second, value));
  LOCKSTEP_CHECK(problems.empty(), "[{}] the state to load does not fit: {}", name(), problems);
  const std::vector<std::int64_t> steps = given.at("steps").to_vector<std::int64_t>();
  for (const std::int64_t step : steps)
    LOCKSTEP_CHECK(step >= 0, "[{}] the state to load does not fit: a parameter has done {} steps", name(), step);
  const double lr = state.scalars.at("lr"), momentum = state.scalars.at("momentum");
  check_lr(lr, name());
  if (momentum != this->momentum()) set_momentum(momentum);  // the last that may throw

  set_lr(lr);
  steps_ = steps;
  for (const nn::NamedTensor& t : own.tensors)
    if (t.name != "steps") copy_values(given.at(t.name), t.tensor);
}

}  // namespace lockstep::optim
