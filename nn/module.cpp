#include "lockstep/nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <typeinfo>
#include <unordered_set>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/profile_modules.h"
#include "lockstep/nn/optim/gradients.h"
#include "lockstep/nn/unregistered.h"

namespace lockstep::nn {

namespace {

/// Keeps the first of tensors that share one TensorImpl (tied weights).
void drop_repeats(std::vector<NamedTensor>& tensors) {
  std::unordered_set<const TensorImpl*> seen;
  std::erase_if(tensors, [&](const NamedTensor& t) { return !seen.insert(t.tensor.impl()).second; });
}

std::vector<Tensor> without_names(std::vector<NamedTensor> named) {
  std::vector<Tensor> tensors;
  tensors.reserve(named.size());
  for (NamedTensor& t : named) tensors.push_back(std::move(t.tensor));
  return tensors;
}

}  // namespace

// --- members
// ----------------------------------------------------------------------------------------------------------

Parameter::Parameter(Module* owner, std::string_view name, Tensor value) : Tensor(std::move(value)) {
  LOCKSTEP_CHECK(owner, "[nn::Parameter] '{}' has no owner; write `nn::Parameter {}{{this, \"{}\", ...}}` in a module",
                 name, name, name);
  if (defined()) {
    LOCKSTEP_CHECK(is_floating_point() && is_leaf(),
                   "[{}] parameter '{}' needs a floating-point leaf, found {}; a constant or counter is an nn::Buffer, "
                   "and a computed value needs detach()",
                   owner->type_name(), name,
                   is_floating_point() ? "the result of a recorded operation" : lockstep::name(dtype()));
    set_requires_grad(true);
  }
  owner->add_member(name, Module::Kind::parameter, *this, nullptr);
}

Buffer::Buffer(Module* owner, std::string_view name, Tensor value) : Tensor(std::move(value)) {
  LOCKSTEP_CHECK(owner, "[nn::Buffer] '{}' has no owner; write `nn::Buffer {}{{this, \"{}\", ...}}` in a module", name,
                 name, name);
  LOCKSTEP_CHECK(!defined() || !requires_grad(), "[{}] buffer '{}' requires gradients; make it an nn::Parameter",
                 owner->type_name(), name);
  owner->add_member(name, Module::Kind::buffer, *this, nullptr);
}

Module::Module(Module* parent, std::string_view name) {
  if (parent) parent->add_member(name, Kind::module, {}, this);
}

Module::~Module() {
  if (parent_) std::erase_if(parent_->members_, [this](const Member& m) { return m.module == this; });
  for (Member& member : members_)
    if (member.module) member.module->parent_ = nullptr;
}

Tensor Module::register_parameter(std::string_view name, Tensor value, bool requires_grad) {
  const Parameter registered(this, name, std::move(value));
  if (registered.defined() && !requires_grad) registered.set_requires_grad(false);
  return registered;
}

Tensor Module::register_buffer(std::string_view name, Tensor value) {
  return Buffer(this, name, std::move(value));
}

const Tensor* NamedTensors::find(std::string_view name) const {
  for (const NamedTensor& each : *this)
    if (each.name == name) return &each.tensor;
  return nullptr;
}

const Tensor& NamedTensors::operator[](std::string_view name) const {
  const Tensor* const found = find(name);
  LOCKSTEP_CHECK(found, "[NamedTensors] there is no tensor named '{}'; see keys()", name);
  return *found;
}

std::vector<std::string> NamedTensors::keys() const {
  std::vector<std::string> names;
  for (const NamedTensor& each : *this) names.push_back(each.name);
  return names;
}

std::vector<Tensor> NamedTensors::values() const {
  return without_names(*this);
}

void Module::register_module(std::string_view name, Module& child) {
  add_member(name, Kind::module, {}, &child);
}

void Module::add_member(std::string_view name, Kind kind, Tensor tensor, Module* module) {
  LOCKSTEP_CHECK(!name.empty() && name.find('.') == std::string_view::npos,
                 "[{}] '{}' cannot name a member; expected a name without '.', which separates levels", type_name(),
                 name);
  for (const Member& member : members_)
    LOCKSTEP_CHECK(member.name != name, "[{}] has two members named '{}'; give each its own name", type_name(), name);
  if (module) {
    LOCKSTEP_CHECK(!module->parent_ && module != this, "[{}] child '{}' already belongs to a module", type_name(),
                   name);
    for (const Module* above = parent_; above; above = above->parent_)
      LOCKSTEP_CHECK(above != module, "[{}] child '{}' is a module above it; a tree of modules has no cycles",
                     type_name(), name);
    module->parent_ = this;
  }
  members_.push_back({std::string(name), kind, std::move(tensor), module});
}

Tensor Module::forward(Tensor) {
  lockstep::detail::throw_error(
      fmt::format("[{}] has no forward(Tensor); override it, or derive the class from ModuleOf if its forward() takes "
                  "other arguments",
                  type_name()));
}

std::string Module::path() const {
  if (!parent_) return {};
  const auto own = std::ranges::find_if(parent_->members_, [this](const Member& m) { return m.module == this; });
  const std::string above = parent_->path();
  return above.empty() ? own->name : above + "." + own->name;
}

void detail::ProfiledCall::begin(const Module& module) {
  if (module.hooks_ && module.hooks_->on_call) module.hooks_->on_call();
  if (!profile::enabled()) return;
  const std::string path = module.path();
  outer_ = profile::enter_module(profile::intern(path.empty() ? "(model)" : path));
  begun_ = true;
}

void detail::ProfiledCall::end() {
  profile::enter_module(outer_);
}

Tensor Module::watched_call(Tensor x) {
  const detail::ProfiledCall profiled(*this);
  const bool watched = hooks_ && (!hooks_->before.empty() || !hooks_->after.empty());
  const bool backward = hooks_ && !hooks_->backward.empty() && GradMode::enabled();
  const bool first = !parent_ && !called_.load(std::memory_order_relaxed);
  if (watched) run_hooks_before(x);
  if (!watched && !first && !backward) return forward(std::move(x));
  const std::uint64_t began = Node::take_sequence();
  Tensor out = backward ? forward_with_backward_hooks(x) : forward(x);
  if (first && GradMode::enabled() && !called_.exchange(true)) detail::warn_of_unregistered({out}, {x}, began, *this);
  if (watched) run_hooks_after(x, out);
  return out;
}

std::uint64_t Module::begin_first_call() {
  return Node::take_sequence();
}

void Module::end_first_call(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                            std::uint64_t began) {
  if (GradMode::enabled() && !called_.exchange(true)) detail::warn_of_unregistered(outputs, inputs, began, *this);
}

// --- what it holds
// ----------------------------------------------------------------------------------------------------

void Module::collect(std::vector<NamedTensor>& out, const std::string& prefix, bool parameters, bool buffers,
                     bool recurse) const {
  for (const Member& member : members_) {
    if (member.kind == Kind::module) {
      if (recurse) member.module->collect(out, prefix + member.name + ".", parameters, buffers);
    } else if (member.tensor.defined() && (member.kind == Kind::parameter ? parameters : buffers)) {
      out.push_back({prefix + member.name, member.tensor});
    }
  }
}

NamedTensors Module::named_parameters(std::string_view prefix, bool recurse) const {
  NamedTensors out;
  collect(out, prefix.empty() ? "" : std::string(prefix) + ".", true, false, recurse);
  drop_repeats(out);
  return out;
}

NamedTensors Module::named_buffers() const {
  NamedTensors out;
  collect(out, "", false, true);
  drop_repeats(out);
  return out;
}

std::vector<NamedTensor> Module::state(bool remove_duplicate) const {
  std::vector<NamedTensor> out;
  collect(out, "", true, true);
  if (remove_duplicate) drop_repeats(out);
  return out;
}

NamedTensors Module::named_parameters() const {
  return named_parameters(true);
}

std::vector<Tensor> Module::parameters() const {
  return parameters(true);
}
std::vector<Tensor> Module::parameters(bool recurse) const {
  return without_names(named_parameters(recurse));
}
std::vector<Tensor> Module::buffers() const {
  return without_names(named_buffers());
}

std::vector<std::pair<std::string, Module*>> Module::named_children() const {
  std::vector<std::pair<std::string, Module*>> out;
  for (const Member& member : members_)
    if (member.module) out.emplace_back(member.name, member.module);
  return out;
}

std::vector<Module*> Module::children() const {
  std::vector<Module*> out;
  for (const Member& member : members_)
    if (member.module) out.push_back(member.module);
  return out;
}

std::vector<Module*> Module::modules() {
  std::vector<Module*> out;
  for (const auto& [name, module] : named_modules()) out.push_back(module);
  return out;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> out;
  collect_modules("", out);
  return out;
}

void Module::collect_modules(const std::string& name, std::vector<std::pair<std::string, Module*>>& out) {
  out.emplace_back(name, this);
  for (const Member& member : members_)
    if (member.module) member.module->collect_modules(name.empty() ? member.name : name + "." + member.name, out);
}

std::int64_t Module::num_parameters() const {
  std::int64_t count = 0;
  for (const NamedTensor& p : named_parameters()) count += p.tensor.numel();
  return count;
}

std::int64_t Module::num_bytes() const {
  std::int64_t bytes = 0;
  for (const NamedTensor& t : state()) bytes += static_cast<std::int64_t>(t.tensor.nbytes());
  return bytes;
}

Device Module::device() const {
  if (const auto found = named_parameters(); !found.empty()) return found.front().tensor.device();
  if (const auto found = named_buffers(); !found.empty()) return found.front().tensor.device();
  return {};
}

std::string Module::type_name() const {
  const char* mangled = typeid(*this).name();
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : mangled;
}

// --- what can be done to it
// -------------------------------------------------------------------------------------------

void Module::apply(const std::function<void(Module&)>& fn) {
  for (Module* child : children()) child->apply(fn);
  fn(*this);
}

void Module::train(bool on) {
  for (Module* module : modules()) module->training_ = on;
}

void Module::set_requires_grad(bool value) {
  for (const NamedTensor& p : named_parameters()) p.tensor.set_requires_grad(value);
}

void Module::zero_grad(bool set_to_none) {
  optim::detail::zero_gradients(parameters(), set_to_none);
}

template <typename Convert>
void Module::convert_all(Convert&& convert) {
  for (const NamedTensor& t : state()) {
    const Tensor value = convert(t.tensor);
    if (value.is_same(t.tensor)) continue;
    const Tensor grad = t.tensor.grad();
    replace_value(t.tensor, value);
    if (grad.defined()) t.tensor.set_grad(convert(grad));
  }
}

void Module::to(Device device) {
  convert_all([device](const Tensor& t) { return move_values(t, device); });
}

void Module::to(DType dtype) {
  LOCKSTEP_CHECK(is_floating_point(dtype), "[{}] to({}): expected a floating-point type", type_name(), name(dtype));
  convert_all([dtype](const Tensor& t) { return t.is_floating_point() ? cast_values(t, dtype) : t; });
}

void Module::to(Device device, DType dtype) {
  to(dtype);
  to(device);
}

// --- free functions
// ---------------------------------------------------------------------------------------------------

void replace_value(const Tensor& target, const Tensor& value) {
  LOCKSTEP_CHECK(target.defined() && value.defined(), "[nn::replace_value] expected two defined tensors");
  TensorImpl& impl = *target.impl();
  const TensorImpl& from = *value.impl();
  LOCKSTEP_CHECK(!target.requires_grad() || value.is_floating_point(),
                 "[nn::replace_value] the target requires gradients, so the value must be floating-point, found {}",
                 name(value.dtype()));
  LOCKSTEP_CHECK(impl.views.load() == 0 || from.storage != impl.storage,
                 "[nn::replace_value] the value lies in the memory of the target, of which views are kept; clone() it");
  const Tensor grad = target.grad();
  // A graph that saved the old value must not take the new one for it: let the version rise across the swap.
  const StoragePtr old = impl.storage;
  impl.storage = from.storage;
  if (old != impl.storage)
    while (impl.storage->version() <= old->version()) impl.storage->bump_version();
  impl.sizes = from.sizes;
  impl.strides = from.strides;
  impl.offset = from.offset;
  impl.numel = from.numel;
  impl.dtype = from.dtype;
  impl.contiguous = from.contiguous;
  if (grad.defined() &&
      (grad.sizes() != target.sizes() || grad.dtype() != target.dtype() || grad.device() != target.device()))
    target.set_grad({});
}

void copy_parameters_and_buffers(const Module& from, Module& to) {
  std::map<std::string, Tensor> targets;
  for (NamedTensor& t : to.state()) targets.emplace(std::move(t.name), std::move(t.tensor));
  const std::vector<NamedTensor> sources = from.state();
  std::string problems;
  const auto complain = [&](std::string text) { problems += (problems.empty() ? "" : "; ") + std::move(text); };
  std::vector<std::pair<Tensor, Tensor>> pairs;
  for (const NamedTensor& source : sources) {
    const auto found = targets.find(source.name);
    if (found == targets.end()) {
      complain(fmt::format("missing {}", source.name));
      continue;
    }
    const Tensor& target = found->second;
    if (target.sizes() != source.tensor.sizes() || target.dtype() != source.tensor.dtype())
      complain(fmt::format("{} is {} {}, expected {} {}", source.name, name(target.dtype()), to_string(target.sizes()),
                           name(source.tensor.dtype()), to_string(source.tensor.sizes())));
    pairs.emplace_back(source.tensor, target);
    targets.erase(found);
  }
  for (const auto& [name, tensor] : targets) complain(fmt::format("unexpected {}", name));
  LOCKSTEP_CHECK(problems.empty(), "[nn::copy_parameters_and_buffers] {} does not match {}: {}", to.type_name(),
                 from.type_name(), problems);
  for (const auto& [source, target] : pairs) {
    copy_values(source, target);
    target.storage()->bump_version();
  }
}

}  // namespace lockstep::nn
