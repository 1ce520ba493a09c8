#include "lockstep/distributed/parallel/sharding/division.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/distributed/parallel/model_part.h"
#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {
namespace {

struct NamedModule {
  std::string name;
  nn::Module* module;
};

std::vector<NamedModule> children_of(const NamedModule& parent) {
  std::vector<NamedModule> children;
  for (const auto& [name, child] : parent.module->named_children())
    children.push_back({parent.name.empty() ? name : parent.name + "." + name, child});
  return children;
}

// ModuleList and Sequential name their elements by numbers.
bool is_row(const nn::Module& module) {
  const auto children = module.named_children();
  std::size_t with_parameters = 0;
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (children[i].first != std::to_string(i)) return false;
    if (!children[i].second->parameters().empty()) ++with_parameters;
  }
  return with_parameters > 1;
}

// The elements of the first row of modules, from above; of a model without one, its children.
std::vector<NamedModule> default_units(nn::Module& root) {
  for (std::vector<NamedModule> level = {{"", &root}}; !level.empty();) {
    std::vector<NamedModule> below;
    for (const NamedModule& each : level) {
      std::vector<NamedModule> children = children_of(each);
      if (is_row(*each.module)) return children;
      below.insert(below.end(), children.begin(), children.end());
    }
    level = std::move(below);
  }
  return children_of({"", &root});
}

NamedModule find_module(nn::Module& root, const std::string& name) {
  NamedModule at{"", &root};
  while (at.name != name) {
    const std::vector<NamedModule> children = children_of(at);
    const auto next = std::ranges::find_if(
        children, [&](const NamedModule& child) { return name == child.name || name.starts_with(child.name + "."); });
    LOCKSTEP_CHECK(next != children.end(),
                   "[TrainingStep] shard_units names '{}', and {} has no such module; expected names such as '{}'",
                   name, root.type_name(), children.empty() ? "0" : children.front().name);
    at = *next;
  }
  return at;
}

}  // namespace

namespace {

std::mutex divisions_mutex;
std::vector<Division*>& divisions() {
  static std::vector<Division*> all;
  return all;
}

}  // namespace

std::shared_ptr<Division> Division::of(const nn::Module& module) {
  const std::vector<Tensor> held = module.parameters();
  const std::lock_guard lock(divisions_mutex);
  for (Division* each : divisions())
    if (std::ranges::any_of(held, [&](const Tensor& parameter) { return each->has(parameter); }))
      if (auto found = each->weak_from_this().lock()) return found;
  return nullptr;
}

bool Division::has(const Tensor& parameter) const {
  return std::ranges::any_of(parameters, [&](const nn::NamedTensor& each) { return each.tensor.is_same(parameter); });
}

void Division::check_undivided(const nn::Module& module) {
  LOCKSTEP_CHECK(!of(module),
                 "[TrainingStep] this module, or a part of it, is divided by another step, which lives still (zero = 2 "
                 "or 3); make one step of a module, or let go of the former and of its optimizer before");
}

std::shared_ptr<Division> Division::make(nn::Module& module, const TrainingStepOptions& options, int rank, int world) {
  check_undivided(module);
  auto made = std::make_shared<Division>(module, options, rank, world);
  const std::lock_guard lock(divisions_mutex);
  divisions().push_back(made.get());
  return made;
}

Division::Division(nn::Module& module, const TrainingStepOptions& options, int rank_, int world_)
    : rank(rank_),
      world(world_),
      values_too(options.zero == 3),
      gather_dtype(options.gather_dtype),
      within(options.gather_within > 0 ? options.gather_within : world_),
      of_part(options.model_part != nullptr),
      parameters(reduced_parameters(module, options)) {
  const std::size_t reduced = parameters.size();
  std::vector<nn::NamedTensor> frozen;
  for (nn::NamedTensor& each : module.named_parameters()) {
    if (of_part && each.tensor.numel() == 0) continue;  // another part's
    LOCKSTEP_CHECK(each.tensor.is_contiguous(),
                   "[TrainingStep] parameter '{}' of shape {} is not contiguous, and cannot be divided over ranks",
                   each.name, to_string(each.tensor.sizes()));
    if (!each.tensor.requires_grad()) {
      if (values_too) frozen.push_back(std::move(each));
    } else if (std::none_of(parameters.begin(), parameters.begin() + static_cast<std::ptrdiff_t>(reduced),
                            [&](const nn::NamedTensor& other) { return other.tensor.is_same(each.tensor); })) {
      parameters.push_back(std::move(each));
    }
  }
  trained = parameters.size();
  has_gradient.assign(trained, false);
  parameters.insert(parameters.end(), frozen.begin(), frozen.end());
  units.emplace_back();
  if (values_too && !of_part)
    find_units(module, options.shard_units);
  else
    add_buckets(reduced, options);
  const auto flats_below = [&](std::size_t end) {
    return static_cast<std::size_t>(
        std::ranges::count_if(flats, [&](const Flat& flat) { return flat.members.front() < end; }));
  };
  reduced_flats = flats_below(reduced);
  trained_flats = flats_below(trained);
  std::vector<Tensor> without_gradient;
  for (std::size_t p = 0; p < trained; ++p) without_gradient.push_back(parameters[p].tensor);
  gradients_elsewhere_ = std::make_unique<optim::detail::GradientsInParts>(
      std::move(without_gradient), optim::detail::GradientsInParts::Kind::elsewhere,
      fmt::format("has no gradient of its own: a training step divides the gradients over {} rank(s) (zero = {}); call "
                  "this function of the ZeroRedundancyOptimizer, which has them",
                  world, options.zero),
      [this](const std::vector<Tensor>& some, bool set_to_none) { clear_gradients_of(some, set_to_none); });
}

Division::~Division() {
  const std::lock_guard lock(divisions_mutex);
  std::erase(divisions(), this);
}

// Of whole gradients that come as the Reducer's do; of values, if they are divided, as they are.
void Division::add_buckets(std::size_t reduced, const TrainingStepOptions& options) {
  const auto add = [&](const std::vector<std::size_t>& members) {
    if (members.empty()) return;
    if (values_too)
      units.push_back({fmt::format("'{}' to '{}'", parameters[members.front()].name, parameters[members.back()].name),
                       nullptr,
                       {}});
    add_flat(units.size() - 1, members);
  };
  const std::vector<Tensor> shared = options.model_part ? options.model_part->shared() : std::vector<Tensor>();
  std::vector<BucketItem> items;
  for (const auto& [name, tensor] : parameters) items.push_back({tensor.nbytes(), tensor.dtype(), tensor.device()});
  const std::vector<BucketItem> first(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(reduced)),
      last(items.begin() + static_cast<std::ptrdiff_t>(trained), items.end());
  for (std::vector<std::size_t> bucket : assign_buckets(first, options.first_bucket_bytes, options.bucket_bytes)) {
    const auto alone = std::stable_partition(bucket.begin(), bucket.end(), [&](std::size_t p) {
      return std::ranges::none_of(shared, [&](const Tensor& each) { return each.is_same(parameters[p].tensor); });
    });
    add({bucket.begin(), alone});
    for (auto p = alone; p != bucket.end(); ++p) add({*p});
  }
  for (std::size_t p = reduced; p < trained; ++p) add({p});
  for (std::vector<std::size_t> bucket : assign_buckets(last, options.first_bucket_bytes, options.bucket_bytes)) {
    for (std::size_t& p : bucket) p += trained;
    add(bucket);
  }
}

// Gradients come from the last block to the first, and last those of what lies around them.
void Division::find_units(nn::Module& module, const std::vector<std::string>& names) {
  std::vector<NamedModule> found;
  for (const std::string& name : names) found.push_back(find_module(module, name));
  if (names.empty()) found = default_units(module);
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<std::size_t> unit_of(parameters.size(), kNone);
  for (const NamedModule& each : found) {
    const std::vector<Tensor> held = each.module->parameters();
    if (held.empty()) continue;
    for (const Unit& other : units)
      LOCKSTEP_CHECK(other.name.empty() || (!each.name.starts_with(other.name + ".") &&
                                            !other.name.starts_with(each.name + ".") && other.name != each.name),
                     "[TrainingStep] shard_units names '{}' and '{}', one of which holds the other; name one of them",
                     other.name, each.name);
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (std::ranges::any_of(held, [&](const Tensor& tensor) { return tensor.is_same(parameters[p].tensor); }))
        unit_of[p] = unit_of[p] == kNone ? units.size() : 0;  // what two blocks share belongs to none
    units.push_back({each.name, each.module, {}});
  }
  for (const bool of_trained : {true, false})
    for (std::size_t u = units.size(); u-- > 0;) {
      std::vector<std::size_t> members;
      for (std::size_t p = 0; p < parameters.size(); ++p)
        if ((unit_of[p] == kNone ? 0 : unit_of[p]) == u && (p < trained) == of_trained) members.push_back(p);
      add_flats(u, members);
    }
}

void Division::add_flats(std::size_t unit, std::vector<std::size_t> members) {
  while (!members.empty()) {
    const Tensor first = parameters[members.front()].tensor;
    const auto rest = std::stable_partition(members.begin(), members.end(), [&](std::size_t p) {
      return parameters[p].tensor.dtype() == first.dtype() && parameters[p].tensor.device() == first.device();
    });
    add_flat(unit, {members.begin(), rest});
    members.erase(members.begin(), rest);
  }
}

void Division::add_flat(std::size_t unit, const std::vector<std::size_t>& members) {
  Flat flat;
  flat.members = members;
  std::vector<std::string> names;
  std::int64_t elements = 0;
  for (const std::size_t p : members) {
    flat.offsets.push_back(elements);
    elements += parameters[p].tensor.numel();
    names.push_back(parameters[p].name);
  }
  flat.offsets.push_back(elements);
  flat.block = (elements + world - 1) / world;
  flat.options = options_of(parameters[members.front()].tensor);
  flat.label = bucket_label(flats.size(), names);
  units[unit].flats.push_back(flats.size());
  flats.push_back(std::move(flat));
}

std::pair<std::int64_t, std::int64_t> Division::own_range(const Flat& flat) const {
  const std::int64_t begin = std::min(flat.block * rank, flat.elements());
  return {begin, std::min(begin + flat.block, flat.elements())};
}

std::size_t Division::place_of_shared(const Tensor& parameter) const {
  const auto found = std::ranges::find_if(flats, [&](const Flat& flat) {
    return flat.members.size() == 1 && parameters[flat.members.front()].tensor.is_same(parameter);
  });
  LOCKSTEP_ASSERT(found != flats.end(), "a parameter of shape {} is not alone in its flat",
                  to_string(parameter.sizes()));
  return static_cast<std::size_t>(found - flats.begin());
}

Tensor Division::shared_gradient(const Tensor& parameter) const {
  const Flat& flat = flats[place_of_shared(parameter)];
  return has_gradient[flat.members.front()] ? flat.gradient : Tensor();
}

void Division::set_shared_gradient(const Tensor& parameter, const Tensor& block) {
  Flat& flat = flats[place_of_shared(parameter)];
  flat.gradient = block;
  has_gradient[flat.members.front()] = block.defined();
}

void Division::clear_gradients() {
  for (Flat& flat : flats) flat.gradient = {};
  has_gradient.assign(has_gradient.size(), false);
}

void Division::clear_gradients_of(const std::vector<Tensor>& some, bool set_to_none) {
  const NoGradGuard values_only;
  std::unordered_set<const TensorImpl*> named;
  for (const Tensor& each : some) named.insert(each.impl());
  for (std::size_t f = 0; f < trained_flats; ++f) {
    Flat& flat = flats[f];
    const auto [own_begin, own_end] = own_range(flat);
    bool any_left = false;
    for (std::size_t m = 0; m < flat.members.size(); ++m) {
      const std::size_t p = flat.members[m];
      if (!has_gradient[p]) continue;
      const bool is_named = named.contains(parameters[p].tensor.impl());
      if (is_named && set_to_none) has_gradient[p] = false;
      any_left = any_left || has_gradient[p];
      if (!is_named) continue;
      const std::int64_t begin = std::max(own_begin, flat.offsets[m]), end = std::min(own_end, flat.offsets[m + 1]);
      if (flat.gradient.defined() && begin < end)
        fill_values(elements_of(flat.gradient, begin - own_begin, end - begin), 0.0);
    }
    if (!any_left) flat.gradient = {};
  }
}

Tensor elements_of(const Tensor& tensor, std::int64_t begin, std::int64_t size) {
  return tensor.detach().as_strided({size}, {1}, tensor.offset() + begin);
}

}  // namespace lockstep::distributed
