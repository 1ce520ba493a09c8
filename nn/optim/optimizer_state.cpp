// What a checkpoint keeps of an optimizer.

#include <map>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {
namespace {

constexpr const char* kGroups = OptimizerState::kGroups;

std::vector<std::int64_t> groups_of(const Optimizer& optimizer) {
  return {optimizer.group_of_parameters().begin(), optimizer.group_of_parameters().end()};
}

std::string scalar_name(const std::string& name, std::size_t group) {
  return group == 0 ? name : fmt::format("{}.{}.{}", kGroups, group, name);
}

}  // namespace

OptimizerState Optimizer::state() const {
  const_cast<Optimizer*>(this)->settle_steps();
  const_cast<Optimizer*>(this)->make_state();  // all zero before the first step: the same as absent
  OptimizerState out;
  out.type = name();
  out.parameters = parameters_;
  out.tensors.push_back({"steps", tensor(steps_)});
  if (num_param_groups() > 1) out.tensors.push_back({kGroups, tensor(groups_of(*this))});
  for (const Bucket& bucket : buckets_)
    for (std::size_t s = 0; s < bucket.state_names.size(); ++s)
      for (std::size_t m = 0; m < bucket.members.size(); ++m)
        out.tensors.push_back(
            {fmt::format("{}.{}", bucket.state_names[s], bucket.members[m]), state_view(bucket, m, s)});
  for (std::size_t group = 0; group < num_param_groups(); ++group) {
    out.scalars.insert({{scalar_name("lr", group), lr(group)}, {scalar_name("momentum", group), momentum(group)}});
    for (const auto& [key, value] : settings(group)) out.scalars.emplace(scalar_name(key, group), value);
  }
  return out;
}

Tensor OptimizerStateReader::read_all(const std::string& name) const {
  const Shape& sizes = tensors.at(name).sizes;
  return read(name, 0, sizes.numel()).detach().view(sizes);
}

OptimizerStateReader reader_of(const OptimizerState& state) {
  std::map<std::string, Tensor> given;
  OptimizerStateReader reader{state.type, {}, state.scalars, nullptr};
  for (const nn::NamedTensor& t : state.tensors) {
    given.emplace(t.name, t.tensor.detach());
    reader.tensors.emplace(t.name, OptimizerStateReader::Entry{t.tensor.sizes(), t.tensor.dtype()});
  }
  reader.read = [given = std::move(given)](const std::string& name, std::int64_t begin, std::int64_t size) {
    const Tensor whole = as_contiguous(given.at(name));
    return whole.as_strided({size}, {1}, whole.offset() + begin);
  };
  return reader;
}

void Optimizer::load_state(const OptimizerState& state) {
  load_state(reader_of(state));
}

std::function<void()> Optimizer::prepare_load(const OptimizerStateReader& state) {
  LOCKSTEP_CHECK(state.type == name(), "[{}] the state to load is that of {}; construct the same optimizer", name(),
                 state.type.empty() ? "no optimizer" : state.type);
  const OptimizerState own = this->state();
  std::string problems;
  const auto complain = [&](std::string text) { problems += (problems.empty() ? "" : "; ") + std::move(text); };
  for (const nn::NamedTensor& t : own.tensors) {
    const auto found = state.tensors.find(t.name);
    if (found == state.tensors.end()) {
      complain("missing " + t.name);
    } else if (found->second.sizes != t.tensor.sizes() || found->second.dtype != t.tensor.dtype()) {
      complain(fmt::format("{} is {} {}, expected {} {}", t.name, lockstep::name(found->second.dtype),
                           to_string(found->second.sizes), lockstep::name(t.tensor.dtype()),
                           to_string(t.tensor.sizes())));
    }
  }
  for (const auto& [key, value] : state.tensors) {
    bool known = false;
    for (const nn::NamedTensor& t : own.tensors) known = known || t.name == key;
    if (key == kGroups && !known)
      complain("it has several parameter groups, this optimizer one");
    else if (!known)
      complain("unexpected " + key);
  }
  if (problems.empty() && num_param_groups() > 1 &&
      state.read_all(kGroups).to_vector<std::int64_t>() != groups_of(*this))
    complain("its parameters are in other groups than this optimizer's");
  for (std::size_t group = 0; group < num_param_groups(); ++group) {
    for (const char* name : {"lr", "momentum"})
      if (const std::string key = scalar_name(name, group); !state.scalars.contains(key)) complain("missing " + key);
    for (const auto& [name, value] : settings(group)) {
      const std::string key = scalar_name(name, group);
      if (const auto found = state.scalars.find(key); found != state.scalars.end() && found->second != value)
        complain(
            fmt::format("it was saved with {} {}, this optimizer was constructed with {}", key, found->second, value));
    }
  }
  LOCKSTEP_CHECK(problems.empty(), "[{}] the state to load does not fit: {}", name(), problems);
  const std::vector<std::int64_t> steps = state.read_all("steps").to_vector<std::int64_t>();
  for (const std::int64_t step : steps)
    LOCKSTEP_CHECK(step >= 0, "[{}] the state to load does not fit: a parameter has done {} steps", name(), step);
  std::vector<std::pair<double, double>> rates;
  for (std::size_t group = 0; group < num_param_groups(); ++group) {
    rates.emplace_back(state.scalars.at(scalar_name("lr", group)), state.scalars.at(scalar_name("momentum", group)));
    check_rates(group, rates.back().first, rates.back().second);
  }
  std::vector<std::pair<Tensor, Tensor>> values;  // from, to
  for (const nn::NamedTensor& t : own.tensors)
    if (t.name != "steps" && t.name != kGroups) values.emplace_back(state.read_all(t.name), t.tensor);

  return [this, steps, rates, values] {
    settle_steps();
    steps_ = steps;
    for (std::size_t group = 0; group < rates.size(); ++group) {
      set_lr(rates[group].first, group);
      set_momentum(rates[group].second, group);
    }
    for (const auto& [from, to] : values) copy_values(from, to);
  };
}

}  // namespace lockstep::optim
