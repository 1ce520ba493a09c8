#include "lockstep/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile.h"
#include "lockstep/nn/optim/gradients.h"
#include "lockstep/nn/optim/gradients_in_parts.h"
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

// Values that other processes keep have no address; each parameter's are its own.
bool is_elsewhere(const Tensor& parameter) {
  const Storage& storage = *parameter.storage();
  return storage.is_pending() && storage.computation()->is_elsewhere();
}

// An element in two parameters would be updated twice a step. Gaps between a parameter's elements count as its own only
// where both have none.
void check_apart(const std::vector<Tensor>& parameters, const char* type) {
  const LibraryAccess access;
  std::vector<std::size_t> order;
  std::set<const Storage*> elsewhere;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_elsewhere(parameters[i])) {
      if (parameters[i].numel() > 0) order.push_back(i);
      continue;
    }
    LOCKSTEP_CHECK(elsewhere.insert(parameters[i].storage().get()).second, "[{}] parameter {} was passed twice", type,
                   i);
  }
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

void mark_as_optimized(const std::vector<Tensor>& parameters) {
  for (const Tensor& p : parameters)
    if (auto* const meta = static_cast<AutogradMeta*>(p.impl()->autograd.get())) meta->has_optimizer = true;
}

void check_parameters(const std::vector<Tensor>& parameters, const char* type) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i];
    LOCKSTEP_CHECK(p.defined() && p.is_floating_point() && p.is_leaf(),
                   "[{}] parameter {} is not a floating-point leaf; pass model.parameters()", type, i);
    LOCKSTEP_CHECK(!strides_may_overlap(p.sizes(), p.strides()),
                   "[{}] elements of parameter {}, {} with strides {}, lie in one place, where the update of one would "
                   "overwrite that of another; pass contiguous()",
                   type, i, to_string(p.sizes()), to_string(p.strides()));
  }
  check_apart(parameters, type);
}

}  // namespace

void Optimizer::add_parameters(std::vector<Tensor> parameters, int form) {
  std::vector<Tensor> all = parameters_;
  all.insert(all.end(), parameters.begin(), parameters.end());
  check_parameters(all, name());
  forms_.push_back(form);
  parameters_ = std::move(all);
  mark_as_optimized(parameters_);
  group_of_.resize(parameters_.size(), forms_.size() - 1);
  steps_.resize(parameters_.size(), 0);
}

void Optimizer::replace_parameters(std::vector<Tensor> parameters, std::vector<std::size_t> group_of) {
  LOCKSTEP_CHECK(buckets_.empty(), "[{}] parameters can be replaced only before the first step", name());
  LOCKSTEP_CHECK(parameters.size() == group_of.size(), "[{}] expected a group for each of {} parameters, found {}",
                 name(), parameters.size(), group_of.size());
  for (const std::size_t group : group_of) check_group(group);
  check_parameters(parameters, name());
  parameters_ = std::move(parameters);
  group_of_ = std::move(group_of);
  steps_.assign(parameters_.size(), 0);
}

void Optimizer::take_groups_of(const Optimizer& other) {
  agree_ = other.agree_;
  LOCKSTEP_CHECK(other.buckets_.empty(), "[{}] has made steps; hand it over before its first", other.name());
  parameters_ = other.parameters_;
  group_of_ = other.group_of_;
  forms_ = other.forms_;
  steps_.assign(parameters_.size(), 0);
}

std::vector<std::string> Optimizer::state_names(std::size_t group) const {
  check_group(group);
  return names_of_state(forms_[group]);
}

void Optimizer::check_not_empty() const {
  LOCKSTEP_CHECK(!parameters_.empty(), "[{}] expected at least one parameter, found none; pass model.parameters()",
                 name());
}

void Optimizer::check_group(std::size_t group) const {
  LOCKSTEP_CHECK(group < forms_.size(), "[{}] there is no parameter group {}; the optimizer has {}", name(), group,
                 forms_.size());
}

void Optimizer::check_form(std::size_t group, bool fits) const {
  LOCKSTEP_CHECK(fits,
                 "[{}] momentum, nesterov and amsgrad of parameter group {} cannot be switched on or off later; make "
                 "the group with them (OneCycle changes the momentum unless its cycle_momentum is false)",
                 name(), group);
}

void Optimizer::check_lr(double lr) const {
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0.0, "[{}] expected a finite lr >= 0, found {}", name(), lr);
}

DType Optimizer::state_dtype(DType parameter) {
  return parameter == kFloat16 || parameter == kBFloat16 ? kFloat32 : parameter;
}

void Optimizer::set_lr(double lr) {
  for (std::size_t group = 0; group < num_param_groups(); ++group) set_lr(lr, group);
}

void Optimizer::set_momentum(double value) {
  for (std::size_t group = 0; group < num_param_groups(); ++group) set_momentum(value, group);
}

void Optimizer::zero_grad(bool set_to_none) {
  detail::zero_gradients(parameters_, set_to_none);
}

GradNorm Optimizer::clip_grad_norm_(double max_norm, bool error_if_nonfinite) {
  return optim::clip_grad_norm_(parameters(), max_norm, error_if_nonfinite);
}

void Optimizer::visit_gradients(const std::function<void(const Tensor& parameter, const Tensor& grad)>& take) const {
  detail::require_gradients(parameters(), "visit_gradients", detail::GradientsInParts::Kind::elsewhere);
  for (const Tensor& parameter : parameters())
    if (const Tensor grad = parameter.grad(); grad.defined()) take(parameter, grad);
}

void Optimizer::multiply_gradients(double factor) {
  detail::require_gradients(parameters(), "multiply_gradients", detail::GradientsInParts::Kind::elsewhere);
  const NoGradGuard no_grad;
  for (const Tensor& parameter : parameters())
    if (const Tensor grad = parameter.grad(); grad.defined()) grad.mul_(factor);
}

void Optimizer::clip_grad_value_(double limit) {
  optim::clip_grad_value_(parameters(), limit);
}

void Optimizer::make_state() {
  if (has_state()) return;
  const std::size_t first = buckets_.size();  // those before keep their memory
  for (std::size_t i = with_state_; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    const int form = forms_[group_of_[i]];
    const auto same = std::find_if(
        buckets_.begin() + static_cast<std::ptrdiff_t>(first), buckets_.end(),
        [&](const Bucket& b) { return b.plan.dtype == p.dtype() && b.device == p.device() && b.plan.form == form; });
    Bucket& bucket = same != buckets_.end() ? *same : buckets_.emplace_back();
    if (bucket.members.empty()) {
      bucket.plan.dtype = p.dtype();
      bucket.plan.form = form;
      bucket.device = p.device();
      bucket.state_names = names_of_state(form);
      bucket.offsets = {0};
    }
    bucket.members.push_back(i);
    bucket.offsets.push_back(bucket.offsets.back() + p.numel());
  }
  with_state_ = parameters_.size();
  for (std::size_t b = first; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    const TensorOptions options{.dtype = state_dtype(bucket.plan.dtype), .device = bucket.device};
    for (std::size_t s = 0; s < bucket.state_names.size(); ++s)
      bucket.buffers.push_back(zeros({bucket.offsets.back()}, options));
    bucket.dense_parameters.resize(bucket.members.size());
    bucket.dense_gradients.resize(bucket.members.size());
    // Of the size it may ever need: a captured graph goes on reading this one.
    if (bucket.device.is_cuda())
      bucket.plan.table = zeros({step_table_words(bucket.members.size()) + later_scalars_words(bucket.members.size())},
                                {.dtype = kInt64, .device = bucket.device});
  }
}

bool Optimizer::is_capturing(const Device& device) const {
  return device.is_cuda() && cuda::is_capturing(device.index);
}

void Optimizer::check_all_options() const {
  for (std::size_t group = 0; group < num_param_groups(); ++group) check_options(group);
}

void Optimizer::step() {
  const NoGradGuard no_grad;
  const profile::Scope scope("optimizer", name());
  check_all_options();
  LOCKSTEP_CHECK(has_state() || !is_capturing(parameters_.front().device()),
                 "[{}] the first step cannot be captured, because it makes the optimizer's state; call step() or "
                 "prepare_step() once before the capture",
                 name());
  if (!is_capturing(parameters_.front().device())) settle_steps();
  make_state();
  check_members();
  for (Bucket& bucket : buckets_) {
    if (is_capturing(bucket.device))
      make_plan(bucket, false);
    else
      prepare(bucket);
    launch(bucket);
  }
}

// All of them, before the first one changes.
void Optimizer::check_members() const {
  for (const Bucket& bucket : buckets_)
    for (std::size_t m = 0; m < bucket.members.size(); ++m) {
      const std::size_t i = bucket.members[m];
      const Tensor& p = parameters_[i];
      LOCKSTEP_CHECK(
          p.dtype() == bucket.plan.dtype && p.device() == bucket.device,
          "[{}] parameter {} was {} on {} at its first step and is {} on {} now; move or cast the model first, "
          "then construct the optimizer",
          name(), i, lockstep::name(bucket.plan.dtype), to_string(bucket.device), lockstep::name(p.dtype()),
          to_string(p.device()));
      const std::int64_t elements = bucket.offsets[m + 1] - bucket.offsets[m];
      LOCKSTEP_CHECK(p.numel() == elements,
                     "[{}] parameter {} had {} elements at its first step and is {} now; construct the optimizer anew, "
                     "as its state is of the old size",
                     name(), i, elements, to_string(p.sizes()));
    }
}

// What has to be updated, and with `count` as a new step. The members have been checked.
void Optimizer::make_plan(Bucket& bucket, bool count) {
  const DType dtype = bucket.plan.dtype;
  const std::size_t element = element_size(dtype), state_element = element_size(state_dtype(dtype));
  const LibraryAccess access;
  std::vector<Run>& runs = bucket.plan.runs;
  runs.clear();
  bucket.group_of_runs.clear();
  std::size_t options_of_last = 0;  // the group whose options the last run has
  bucket.copies_in.clear();
  bucket.copies_out.clear();
  const auto dense = [](Tensor& kept, const Tensor& like) -> const Tensor& {
    if (!kept.defined() || kept.sizes() != like.sizes()) kept = empty(like.sizes(), options_of(like));
    return kept;
  };
  for (const Tensor& state : bucket.buffers) state.storage()->before_change();
  for (std::size_t m = 0; m < bucket.members.size(); ++m) {
    const std::size_t i = bucket.members[m];
    const Tensor& p = parameters_[i];
    const Tensor grad = p.grad();
    if (!grad.defined() || p.numel() == 0) continue;
    Tensor value = p.detach(), gradient = grad;
    if (!grad.is_contiguous()) {
      gradient = dense(bucket.dense_gradients[m], grad);
      bucket.copies_in.emplace_back(grad, gradient);
    }
    if (!p.is_contiguous()) {
      value = dense(bucket.dense_parameters[m], p);
      bucket.copies_in.emplace_back(p, value);
      bucket.copies_out.emplace_back(value, p);
    }
    if (count) ++steps_[i];
    Run run{value.raw_data(), gradient.raw_data(), {}, p.numel(), steps_[i], {}};
    for (std::size_t s = 0; s < bucket.buffers.size(); ++s)
      run.state[s] = static_cast<char*>(bucket.buffers[s].raw_data()) +
                     static_cast<std::size_t>(bucket.offsets[m]) * state_element;
    if (!runs.empty() && options_of_last == group_of_[i] && follows(runs.back(), run, element, state_element)) {
      runs.back().numel += run.numel;
    } else {
      options_of_last = group_of_[i];
      scalars(options_of_last, run.step, run.scalars);
      runs.push_back(run);
      bucket.group_of_runs.push_back(options_of_last);
    }
    p.storage()->bump_version();
  }
}

void Optimizer::launch(Bucket& bucket) {
  if (bucket.plan.runs.empty()) return;
  for (const auto& [from, to] : bucket.copies_in) copy_values(from, to);
  update(parameters_[bucket.members.front()], bucket.plan);
  for (const auto& [from, to] : bucket.copies_out) copy_values(from, to);
}

Tensor Optimizer::state_view(const Bucket& bucket, std::size_t member, std::size_t which) const {
  const Shape& sizes = parameters_[bucket.members[member]].sizes();
  return bucket.buffers[which].as_strided(sizes, contiguous_strides(sizes), bucket.offsets[member]);
}

}  // namespace lockstep::optim
