#include "lockstep/nn/checkpoint.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"

namespace lockstep::nn {
namespace {

constexpr const char* kVersion = "1";
constexpr const char* kOptimizerType = "lockstep.optimizer";
constexpr std::string_view kScalarPrefix = "lockstep.optimizer.";
constexpr const char* kSchedule = "lockstep.schedule_position";
constexpr std::string_view kExtraPrefix = "extra.";

/// A number's text that reads back to the same bits.
template <typename T>
std::string to_text(T value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, result.ptr};
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

void load_optimizer(const SafetensorsFile& file, optim::Optimizer& optimizer) {
  optim::OptimizerState state;
  state.type = text_at(file, kOptimizerType);
  for (const SafetensorsEntry& entry : file.entries())
    if (entry.name.starts_with(kOptimizerPrefix))
      state.tensors.push_back({entry.name.substr(kOptimizerPrefix.size()), file.read(entry.name)});
  for (const auto& [key, value] : file.metadata())
    if (key.starts_with(kScalarPrefix))
      state.scalars.emplace(key.substr(kScalarPrefix.size()), from_text<double>(file, key, value));
  try {
    optimizer.load_state(state);
  } catch (const Error& error) {
    throw Error(fmt::format("[checkpoint] {}: {}", file.path(), error.what()));
  }
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
                     const TrainingState& state, const optim::LRScheduler* scheduler) {
  require_no_later_checkpoint(path, state.step);
  std::vector<NamedTensor> tensors = module.state();
  Metadata metadata{{kCheckpointKey, kVersion},
                    {"lockstep.seed", to_text(state.seed)},
                    {"lockstep.step", to_text(state.step)},
                    {"lockstep.epoch", to_text(state.epoch)},
                    {"lockstep.logical_shards", to_text(state.logical_shards)},
                    {"lockstep.fingerprint", state.fingerprint}};
  for (const auto& [key, value] : state.extra) metadata.emplace(std::string(kExtraPrefix) + key, value);
  if (scheduler) metadata.emplace(kSchedule, to_text(scheduler->position()));
  optim::OptimizerState saved = optimizer.state();
  metadata.emplace(kOptimizerType, saved.type);
  for (const auto& [key, value] : saved.scalars) metadata.emplace(std::string(kScalarPrefix) + key, to_text(value));
  for (NamedTensor& t : saved.tensors) tensors.push_back({std::string(kOptimizerPrefix) + t.name, std::move(t.tensor)});
  save_safetensors(tensors, path, metadata);
}

TrainingState read_training_state(const std::string& path) {
  return training_state(SafetensorsFile(path));
}

TrainingState load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer,
                              optim::LRScheduler* scheduler) {
  const SafetensorsFile file(path);
  TrainingState state = training_state(file);
  LOCKSTEP_CHECK(!scheduler || file.metadata().contains(kSchedule),
                 "[checkpoint] {} holds no schedule's position; it was saved without one", path);
  const auto position = scheduler ? number_at<std::int64_t>(file, kSchedule) : 0;
  LOCKSTEP_CHECK(position >= 0, "[checkpoint] {}: the schedule's position is {}, expected >= 0", path, position);
  check_load(module, file);
  load_optimizer(file, optimizer);  // changes nothing if it throws
  load(module, file);
  if (scheduler) scheduler->set_position(position);
  return state;
}

}  // namespace lockstep::nn
