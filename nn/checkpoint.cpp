#include "lockstep/nn/checkpoint.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>

#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/nn/name_list.h"

namespace lockstep::nn {
namespace {

constexpr const char* kVersion = "1";
constexpr const char* kOptimizerType = "lockstep.optimizer";
constexpr const char* kOptimizerParameters = "lockstep.optimizer_parameters";
constexpr std::string_view kSchedulePrefix = "lockstep.schedule_";
constexpr std::string_view kExtraPrefix = "extra.";

/// A number's text that reads back to the same bits.
template <typename T>
std::string to_text(T value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, result.ptr};
}

/// A whole number stands there as one, without a point or an exponent.
std::string number_text(double value) {
  const bool whole = std::abs(value) < 0x1p53 && value == std::floor(value);
  return whole ? to_text(static_cast<std::int64_t>(value)) : to_text(value);
}

template <typename T>
T from_text(const SafetensorsFile& file, const std::string& key, const std::string& text) {
  const auto value = parse_number<T>(text);
  LOCKSTEP_CHECK(value, "[checkpoint] {}: metadata '{}' is '{}', expected a number", file.path(), key, text);
  return *value;
}

const std::string& text_at(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  LOCKSTEP_CHECK(found != file.metadata().end(), "[checkpoint] {} has no metadata '{}'", file.path(), key);
  return found->second;
}

template <typename T>
T number_at(const SafetensorsFile& file, const std::string& key) {
  return from_text<T>(file, key, text_at(file, key));
}

TrainingState training_state(const SafetensorsFile& file) {
  LOCKSTEP_CHECK(is_checkpoint(file), "[checkpoint] {} is a safetensors file, but no training checkpoint", file.path());
  LOCKSTEP_CHECK(text_at(file, kCheckpointKey) == kVersion, "[checkpoint] {} is of version {}, expected {}",
                 file.path(), text_at(file, kCheckpointKey), kVersion);
  TrainingState state;
  state.seed = number_at<std::uint64_t>(file, "lockstep.seed");
  state.step = number_at<std::int64_t>(file, "lockstep.step");
  state.epoch = number_at<std::int64_t>(file, "lockstep.epoch");
  state.logical_shards = number_at<std::int64_t>(file, "lockstep.logical_shards");
  state.fingerprint = text_at(file, "lockstep.fingerprint");
  for (const auto& [key, value] : file.metadata())
    if (key.starts_with(kExtraPrefix)) state.extra.emplace(key.substr(kExtraPrefix.size()), value);
  LOCKSTEP_CHECK(state.step >= 0 && state.epoch >= 0 && state.logical_shards >= 0,
                 "[checkpoint] {}: step {}, epoch {} and logical shards {} must not be negative", file.path(),
                 state.step, state.epoch, state.logical_shards);
  return state;
}

// Names of what belongs to an optimizer or scheduler: the first one's are `name` alone, as in older files.
std::string numbered(std::string_view name, std::size_t number) {
  return number == 0 ? std::string(name) : fmt::format("{}.{}", name, number);
}

std::string tensor_prefix(std::size_t number) {
  return number == 0 ? std::string(kOptimizerPrefix) : fmt::format("{}{}.", kOptimizerPrefix, number);
}

// What follows `prefix`; empty for another name, and for what belongs to another optimizer.
std::string_view rest_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return {};
  const std::string_view rest = name.substr(prefix.size());
  return !rest.empty() && rest.front() >= '0' && rest.front() <= '9' ? std::string_view() : rest;
}

// The module's names of an optimizer's parameters, each ended by a newline, with nothing before it where the parameter
// is not the module's. Empty: a name cannot be written so.
std::string names_of(const std::vector<Tensor>& parameters, const Module& module) {
  std::map<const TensorImpl*, std::string> known;
  for (const auto& [name, tensor] : module.named_parameters()) known.emplace(tensor.impl(), name);
  std::string names;
  for (const Tensor& parameter : parameters) {
    const auto found = known.find(parameter.impl());
    if (found != known.end() && found->second.find('\n') != std::string::npos) return {};
    names += (found == known.end() ? "" : found->second) + "\n";
  }
  return names;
}

// The place in the file of each of the optimizer's parameters. Empty: the file, an older one, does not tell.
std::vector<std::size_t> places_in(const SafetensorsFile& file, std::size_t number, const Module& module,
                                   const optim::Optimizer& optimizer) {
  const auto names = file.metadata().find(numbered(kOptimizerParameters, number));
  if (names == file.metadata().end()) return {};
  std::map<std::string, const TensorImpl*> tensors;  // a tied one has several names
  for (const auto& [name, tensor] : module.state(/*remove_duplicate=*/false)) tensors.emplace(name, tensor.impl());
  // What the module does not have is found by its place among such.
  std::multimap<const TensorImpl*, std::size_t> saved;
  std::vector<std::string> saved_names;
  for (std::size_t at = 0, end; (end = names->second.find('\n', at)) != std::string::npos; at = end + 1) {
    saved_names.push_back(names->second.substr(at, end - at));
    const auto found = tensors.find(saved_names.back());
    saved.emplace(found == tensors.end() ? nullptr : found->second, saved_names.size() - 1);
  }
  std::map<const TensorImpl*, std::string> own_names;
  for (const auto& [name, tensor] : module.named_parameters()) own_names.emplace(tensor.impl(), name);
  const auto shown = [](const std::string& name) { return name.empty() ? "one that is not the module's" : name; };
  std::vector<std::size_t> places;
  detail::NameList only_here, only_there;
  for (const Tensor& parameter : optimizer.parameters()) {
    const auto own = own_names.find(parameter.impl());
    const TensorImpl* const known = own == own_names.end() ? nullptr : own->first;
    const auto found = saved.lower_bound(known);  // the first of several
    if (found == saved.end() || found->first != known) {
      only_here.add(shown(own == own_names.end() ? "" : own->second));
      continue;
    }
    places.push_back(found->second);
    saved.erase(found);
  }
  for (const auto& [tensor, place] : saved) only_there.add(shown(saved_names[place]));
  LOCKSTEP_CHECK(only_here.empty() && only_there.empty(),
                 "[{}] the state to load is of other parameters:{}{} give the optimizer those that it was saved with",
                 optimizer.name(), only_there.text(" the file's optimizer alone has "),
                 only_here.text(" this one alone has "));
  return places;
}

// `state` for an optimizer whose parameter k is its parameter places[k].
optim::OptimizerStateReader reordered(optim::OptimizerStateReader state, std::vector<std::size_t> places) {
  std::vector<std::size_t> here(places.size());
  for (std::size_t k = 0; k < places.size(); ++k) here[places[k]] = k;
  const auto renamed = [](const std::string& name, const std::vector<std::size_t>& to) {
    const std::size_t dot = name.rfind('.');
    const auto number = dot == std::string::npos ? std::nullopt : parse_number<std::size_t>(name.substr(dot + 1));
    return number && *number < to.size() ? fmt::format("{}.{}", name.substr(0, dot), to[*number]) : name;
  };
  std::map<std::string, optim::OptimizerStateReader::Entry> tensors;
  for (const auto& [name, entry] : state.tensors) tensors.emplace(renamed(name, here), entry);
  state.tensors = std::move(tensors);
  state.read = [=, read = std::move(state.read)](const std::string& name, std::int64_t begin, std::int64_t size) {
    if (name.find('.') != std::string::npos) return read(renamed(name, places), begin, size);
    // A number for each parameter.
    const auto saved = read(name, 0, static_cast<std::int64_t>(places.size())).to_vector<std::int64_t>();
    std::vector<std::int64_t> values;
    for (std::int64_t k = begin; k < begin + size; ++k) values.push_back(saved[places[static_cast<std::size_t>(k)]]);
    return tensor(values);
  };
  return state;
}

// Reads `file`, which must outlive it.
optim::OptimizerStateReader optimizer_state(const SafetensorsFile& file, std::size_t number) {
  const std::string type = numbered(kOptimizerType, number), prefix = tensor_prefix(number);
  optim::OptimizerStateReader state;
  state.type = text_at(file, type);
  state.read = [&file, prefix](const std::string& name, std::int64_t begin, std::int64_t size) {
    return file.read(prefix + name, begin, size);
  };
  for (const SafetensorsEntry& entry : file.entries())
    if (const std::string_view name = rest_of(entry.name, prefix); !name.empty())
      state.tensors.emplace(name, optim::OptimizerStateReader::Entry{entry.shape, entry.dtype});
  for (const auto& [key, value] : file.metadata())
    if (const std::string_view name = rest_of(key, type + "."); !name.empty())
      state.scalars.emplace(name, from_text<double>(file, key, value));
  return state;
}

// Empty: the file holds none of this number.
std::map<std::string, double> scheduler_state(const SafetensorsFile& file, std::size_t number) {
  const std::string end = numbered("", number);
  std::map<std::string, double> state;
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(kSchedulePrefix) || !key.ends_with(end)) continue;
    const std::string name = key.substr(kSchedulePrefix.size(), key.size() - kSchedulePrefix.size() - end.size());
    if (name.find('.') == std::string::npos) state.emplace(name, from_text<double>(file, key, value));
  }
  return state;
}

// The types of the optimizers in a file.
std::vector<std::string> optimizers_in(const SafetensorsFile& file) {
  std::vector<std::string> types{text_at(file, kOptimizerType)};
  for (auto found = file.metadata().end();; types.push_back(found->second))
    if (found = file.metadata().find(numbered(kOptimizerType, types.size())); found == file.metadata().end())
      return types;
}

// None: `path` holds no checkpoint that can be read.
std::optional<std::int64_t> step_in(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  try {
    return read_training_state(path).step;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

void require_no_later_checkpoint(const std::string& path, std::int64_t step) {
  const std::optional<std::int64_t> there = step_in(path);
  LOCKSTEP_CHECK(!there || *there <= step,
                 "[checkpoint] {} holds step {}, and this run, which has not gone on from it, is at step {}; resume "
                 "from the file, move it away, or write to another",
                 path, there.value_or(0), step);
}

void save_checkpoint(const std::string& path, const Module& module, const optim::Optimizer& optimizer,
                     const TrainingState& state, const optim::Scheduler* scheduler) {
  std::vector<const optim::Scheduler*> schedulers;
  if (scheduler) schedulers.push_back(scheduler);
  save_checkpoint(path, module, {optimizer}, state, schedulers);
}

void save_checkpoint(const std::string& path, const Module& module,
                     const std::vector<std::reference_wrapper<const optim::Optimizer>>& optimizers,
                     const TrainingState& state, const std::vector<const optim::Scheduler*>& schedulers) {
  LOCKSTEP_CHECK(!optimizers.empty(), "[checkpoint] there is no optimizer to write to {}", path);
  require_no_later_checkpoint(path, state.step);
  std::vector<optim::OptimizerState> states;
  for (const optim::Optimizer& optimizer : optimizers) states.push_back(optimizer.state());
  const auto [tensors, metadata] = detail::checkpoint_content(module, states, state, schedulers);
  save_safetensors(tensors, path, metadata);
}

detail::CheckpointContent detail::checkpoint_content(const Module& module,
                                                     const std::vector<optim::OptimizerState>& optimizers,
                                                     const TrainingState& state,
                                                     const std::vector<const optim::Scheduler*>& schedulers) {
  CheckpointContent content{module.state(),
                            {{kCheckpointKey, kVersion},
                             {"lockstep.seed", to_text(state.seed)},
                             {"lockstep.step", to_text(state.step)},
                             {"lockstep.epoch", to_text(state.epoch)},
                             {"lockstep.logical_shards", to_text(state.logical_shards)},
                             {"lockstep.fingerprint", state.fingerprint}}};
  Metadata& metadata = content.metadata;
  for (const auto& [key, value] : state.extra) metadata.emplace(std::string(kExtraPrefix) + key, value);
  for (const NamedTensor& t : state.tensors)
    content.tensors.push_back({std::string(kExtraTensorPrefix) + t.name, t.tensor});
  for (std::size_t i = 0; i < schedulers.size(); ++i)
    for (const auto& [key, value] : schedulers[i]->state())
      metadata.emplace(numbered(std::string(kSchedulePrefix) + key, i), number_text(value));
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const std::string type = numbered(kOptimizerType, i);
    metadata.emplace(type, optimizers[i].type);
    if (std::string names = names_of(optimizers[i].parameters, module); !names.empty())
      metadata.emplace(numbered(kOptimizerParameters, i), std::move(names));
    for (const auto& [key, value] : optimizers[i].scalars) metadata.emplace(type + "." + key, to_text(value));
    for (const NamedTensor& t : optimizers[i].tensors) content.tensors.push_back({tensor_prefix(i) + t.name, t.tensor});
  }
  return content;
}

TrainingState read_training_state(const std::string& path) {
  return training_state(SafetensorsFile(path));
}

std::vector<std::string> extra_tensors(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.entries())
    if (entry.name.starts_with(kExtraTensorPrefix)) names.push_back(entry.name.substr(kExtraTensorPrefix.size()));
  return names;
}

Tensor read_extra_tensor(const SafetensorsFile& file, const std::string& name) {
  return file.read(std::string(kExtraTensorPrefix) + name);
}

TrainingState load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer,
                              optim::Scheduler* scheduler) {
  std::vector<optim::Scheduler*> schedulers;
  if (scheduler) schedulers.push_back(scheduler);
  return load_checkpoint(path, module, {optimizer}, schedulers);
}

TrainingState load_checkpoint(const std::string& path, Module& module,
                              const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                              const std::vector<optim::Scheduler*>& schedulers) {
  const SafetensorsFile file(path);
  TrainingState state = training_state(file);
  std::vector<std::function<void()>> loads;
  const auto prepare = [&](auto&& each) {
    try {
      loads.push_back(each());
    } catch (const Error& error) {
      throw Error(fmt::format("[checkpoint] {}: {}", path, error.what()));
    }
  };
  std::vector<std::map<std::string, double>> of_schedulers;
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    of_schedulers.push_back(scheduler_state(file, i));
    LOCKSTEP_CHECK(!of_schedulers[i].empty(),
                   "[checkpoint] {} holds no schedule's position{}; it was saved without one", path,
                   i == 0 ? "" : fmt::format(" for scheduler {}", i));
  }
  const std::vector<std::string> types = optimizers_in(file);
  LOCKSTEP_CHECK(
      types.size() == optimizers.size(),
      "[checkpoint] {} holds the state of {} optimizers ({}), and {} were given; pass those that were saved, "
      "in their order",
      path, types.size(),
      std::accumulate(std::next(types.begin()), types.end(), types.front(),
                      [](std::string all, const std::string& type) { return all + ", " + type; }),
      optimizers.size());
  check_load(module, file);
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    prepare([&] {
      optim::OptimizerStateReader saved = optimizer_state(file, i);
      if (saved.type == optimizers[i].get().name())
        if (std::vector<std::size_t> places = places_in(file, i, module, optimizers[i]); !places.empty())
          saved = reordered(std::move(saved), std::move(places));
      return optimizers[i].get().prepare_load(saved);
    });
  for (std::size_t i = 0; i < schedulers.size(); ++i)
    prepare([&] { return schedulers[i]->prepare_load(of_schedulers[i]); });
  load(module, file);
  for (const auto& load_each : loads) load_each();
  module.resume_at(state.step);
  return state;
}

}  // namespace lockstep::nn
