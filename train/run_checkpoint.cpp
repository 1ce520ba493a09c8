// What a run does with checkpoints: writes them, finds them, and refuses those that do not fit.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/log.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/lockstep_fingerprint.h"
#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "lockstep/nn/safetensors.h"
#include "lockstep/train/hook_state.h"
#include "lockstep/train/output.h"
#include "lockstep/train/run_state.h"

namespace lockstep::training {

using detail::kContent;
using detail::kSamples;

namespace {

/// True if one of these variables is a number above 0.
bool is_positive(std::initializer_list<const char*> variables) {
  for (const char* variable : variables)
    if (const char* text = std::getenv(variable); text && std::atoll(text) > 0) return true;
  return false;
}

/// A launcher will start the workers again if one fails.
bool is_elastic() {
  return is_positive({"LOCKSTEP_ELASTIC", "TORCHELASTIC_MAX_RESTARTS"});
}

/// And has done so.
bool is_restarted() {
  return is_positive({"LOCKSTEP_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"});
}

std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? text : "";
}

/// With what is no UTF-8 replaced: settings are written as JSON.
std::string as_text(const std::string& bytes) {
  using nlohmann::json;
  return json::parse(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

/// What tells the job, whose workers a launcher may start several times, from others; empty: nothing does. torchrun's
/// name for it is "none" unless the user gives one, so that the folder counts too that its agent makes for all attempts
/// of its workers: FOLDER/attempt_N/RANK/error.json.
std::string job_name() {
  if (const std::string job = text_of("LOCKSTEP_JOB_ID"); !job.empty()) return as_text(job);
  const std::string run = text_of("TORCHELASTIC_RUN_ID");
  const std::filesystem::path report = text_of("TORCHELASTIC_ERROR_FILE");
  const std::string folder = report.parent_path().parent_path().parent_path().string();
  if (!folder.empty()) return as_text(fmt::format("{} in {}", run, folder));
  return run == "none" ? std::string() : as_text(run);
}

// Learning rates and momenta of the step that follows.
constexpr const char* kRates = "learning rates";

// Present if the run was ended between an epoch's last step and what follows it, which is made up for on resumption.
constexpr const char* kEpochEnd = "end of the epoch";

// How gradients travelled.
constexpr const char* kCompression = "compress";

const char* amp_name(DType amp) {
  return amp == kFloat16 ? "fp16" : amp == kBFloat16 ? "bf16" : "off";
}

/// From what the checkpoint `path` says.
optim::GradScalerState scaler_state(const std::string& path, const std::string& scale, const std::string& steps) {
  const auto value = parse_number<double>(scale);
  const auto count = parse_number<std::int64_t>(steps);
  LOCKSTEP_CHECK(value && std::isfinite(*value) && *value > 0 && count && *count >= 0,
                 "'{}' is damaged: expected a positive loss_scale and a number of loss_scale_steps, found '{}' and "
                 "'{}'; resume from another checkpoint",
                 path, scale, steps);
  return {.scale = *value, .good_steps = *count};
}

}  // namespace

void Run::State::on_rank0(const std::function<void()>& body) {
  group ? distributed::on_rank0(*group, body) : body();
}

void Run::State::note_contents() {
  content = as_text(loader.dataset().content());
  if (evaluation) evaluation_content = as_text(evaluation->dataset->content());
}

nn::Metadata Run::State::settings() const {
  nn::Metadata all;
  for (const auto& [name, value] : options.settings) all[as_text(name)] = as_text(value);
  all["batch_size"] = std::to_string(loader.options().batch_size);
  all["amp"] = amp_name(options.amp);
  all["gather"] = options.gather_dtype == kBFloat16 ? "bf16" : "fp32";
  all["data_seed"] = std::to_string(loader.options().seed);
  all[kSamples] = std::to_string(loader.dataset().size());
  if (!content.empty()) all[kContent] = content;
  return all;
}

std::pair<std::size_t, std::size_t> Run::State::sizes() const {
  const auto bytes = [](const Tensor& tensor, DType dtype) {
    return static_cast<std::size_t>(tensor.numel()) * element_size(dtype);
  };
  std::size_t weights = 0, state = 0;
  for (const nn::NamedTensor& t : step.module().state()) weights += bytes(t.tensor, t.tensor.dtype());
  const auto* const divided = dynamic_cast<const distributed::ZeroRedundancyOptimizer*>(&optimizer);
  const optim::Optimizer& formula = divided ? divided->local() : optimizer;
  if (!formula.is_elementwise())
    for (const nn::NamedTensor& t : formula.state().tensors) state += t.tensor.nbytes();
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const Tensor& parameter = optimizer.parameters()[i];
    if (!parameter.requires_grad()) continue;
    state += formula.state_names(optimizer.group_of_parameters()[i]).size() *
             bytes(parameter, optim::Optimizer::state_dtype(parameter.dtype()));
  }
  return {weights, state};
}

std::string Run::State::fingerprint() const {
  if (options.logical_shards == 0) return {};
  return distributed::lockstep_fingerprint(options.logical_shards, step.module().device());
}

std::string Run::State::checkpoint_to_resume() const {
  const bool by_itself = options.resume == "auto" || (options.resume.empty() && is_elastic());
  const bool from_job = is_restarted() && !job.empty();
  if ((by_itself || from_job) && !options.checkpoint.empty())
    if (const auto found = by_itself ? checkpoints.newest() : checkpoints.newest_of_job(job)) {
      if (!found->passed_over.empty())
        logging::warn("[run] passing over what cannot be read as a checkpoint: {}; going on from '{}' of step {}",
                      found->passed_over, found->path, found->step);
      return found->path;
    }
  return options.resume == "auto" || options.resume == "none" ? std::string() : options.resume;
}

void Run::State::resume() {
  job = job_name();
  if (group) job = group->broadcast_object(job);
  std::string path;
  on_rank0([&] { path = checkpoint_to_resume(); });
  if (group) path = group->broadcast_object(path);
  resumed_from = path;
  if (path.empty()) return;
  if (!group) return load(path, path);
  const distributed::Rank0File file(path, *group);
  on_rank0([&] { file.read([](const std::string& here) { nn::SafetensorsFile(here).verify(); }); });
  file.read([&](const std::string& here) { load(path, here); });
}

// From the checkpoint that is called `path`, and can be opened as `file`.
void Run::State::load(const std::string& path, const std::string& file) {
  const nn::TrainingState saved = nn::read_training_state(file);
  const std::uint64_t seed = initial_seed();
  LOCKSTEP_CHECK(saved.seed == seed, "'{}' was trained with --seed {}, not {}; pass the same seed", path, saved.seed,
                 seed);
  const auto setting = [&](const std::string& name) {
    const auto found = saved.extra.find(name);
    if (found != saved.extra.end()) return found->second;
    if (name == "data_seed") return std::to_string(saved.seed);  // younger than some checkpoints, as is amp
    if (name == kSamples) return std::to_string(loader.dataset().size());
    if (name == kContent) return content;
    if (name == "tensor_shards") return std::string("0");
    if (name == "gather") return std::string("fp32");
    return std::string(name == "amp" ? "off" : "unknown");
  };
  for (const auto& [name, value] : settings())
    LOCKSTEP_CHECK(setting(name) == value, "'{}' was trained with {} {}, not {}; pass the same one", path, name,
                   setting(name), value);
  LOCKSTEP_CHECK(saved.logical_shards == options.logical_shards,
                 "'{}' was trained with --lockstep {}, not {} (0: without); pass the same number", path,
                 saved.logical_shards, options.logical_shards);
  LOCKSTEP_CHECK(saved.fingerprint == fingerprint(),
                 "'{}' cannot be continued with the same bits: it comes from \"{}\", this is \"{}\"; continue it on a "
                 "machine and with a build like those, or train without --lockstep",
                 path, saved.fingerprint, fingerprint());
  LOCKSTEP_CHECK(saved.step <= total_steps, "'{}' is at step {}, past the {} steps of this run; raise --epochs", path,
                 saved.step, total_steps);
  const distributed::WholeParameters whole = step.whole_parameters();
  if (options.mesh)
    options.mesh->load_checkpoint(file, optimizer);
  else
    nn::load_checkpoint(file, step.module(), optimizer);
  load_hook(saved, path, file);
  if (optim::GradScaler* scaler = update.scaler())
    scaler->load_state(scaler_state(path, setting("loss_scale"), setting("loss_scale_steps")));
  done = saved.step;
  const auto run = saved.extra.find(kRun);
  run_name = run == saved.extra.end() ? std::string() : run->second;
  epoch_end_is_due = saved.extra.contains(kEpochEnd);
  saved_at = absolute_path(path) == options.checkpoint ? done : -1;
  resumed = fmt::format("resumed from '{}' at step {} on {} worker(s), saved on {}", path, done, workers(),
                        setting("workers"));
  // Another schedule is no error: who trains longer needs one.
  if (const auto before = saved.extra.find(kRates);
      is_rank0 && before != saved.extra.end() && done < total_steps && before->second != rates(done))
    logging::warn(
        "[run] '{}' was to go on at step {} with learning rate {}, and this run does with {}: it will end with other "
        "weights than an undisturbed one",
        path, done, before->second, rates(done));
  if (callbacks.on_resume) callbacks.on_resume(saved);
}

std::string Run::State::rates(std::int64_t at) {
  const std::int64_t before = schedule ? schedule->position() : 0;
  if (schedule) schedule->set_position(at);
  std::string text;
  for (std::size_t group = 0; group < optimizer.num_param_groups(); ++group)
    text += fmt::format("{}{} (momentum {})", group == 0 ? "" : ", ", optimizer.lr(group), optimizer.momentum(group));
  if (schedule) schedule->set_position(before);
  return text;
}

/// What a hook does to gradients has no part in where a training stands, so that one may go on without it, or with
/// another; but not to the same end, which is worth a word.
void Run::State::load_hook(const nn::TrainingState& saved, const std::string& path, const std::string& file) {
  const auto found = saved.extra.find(kCompression);
  const std::string before = found == saved.extra.end() ? std::string() : found->second;  // empty: it is not known
  const std::string now = options.hook ? options.hook->name() : "none";
  const bool same =
      before == now && (!options.hook || load_hook_state(*options.hook, nn::SafetensorsFile(file), group));
  if (is_rank0 && !before.empty() && before != now)
    logging::warn(
        "[run] '{}' was trained with --compress {}, and this run goes on with {}: it will end with other weights than "
        "an undisturbed one",
        path, before, now);
  else if (is_rank0 && !same && now == "powersgd")
    logging::warn("[run] '{}' holds no state of PowerSGD, which begins anew", path);
}

void Run::State::finish_checkpoint() {
  if (under_way < 0) return;
  const std::int64_t at = std::exchange(under_way, -1);
  try {
    background->wait();
  } catch (const Error& error) {
    if (group && group->failed()) throw;
    if (saved_at == at) saved_at = -1;
    message(fmt::format("at step {}: {}; the training goes on", at, error.what()));
  }
}

void Run::State::save_checkpoint(bool last) {
  finish_checkpoint();
  // Its group goes in good order, before an exception that says what was not written: one that an exception takes along
  // would end the other ranks.
  if (last) background.reset();
  if (saved_at == done) return;
  check_weights();
  nn::TrainingState state;
  state.seed = initial_seed();
  state.step = done;
  state.epoch = done / loader.steps_per_epoch();
  state.logical_shards = options.logical_shards;
  state.fingerprint = fingerprint();
  state.extra = settings();
  state.extra["workers"] = std::to_string(workers());
  state.extra[kRun] = run_name;
  if (done < total_steps) state.extra[kRates] = rates(done);
  state.extra[kCompression] = options.hook ? options.hook->name() : "none";
  if (options.hook) state.tensors = gather_hook_state(*options.hook, group);
  if (!job.empty()) state.extra[kJob] = job;
  if (const optim::GradScaler* scaler = update.scaler()) {
    state.extra["loss_scale"] = fmt::format("{}", scaler->state().scale);
    state.extra["loss_scale_steps"] = std::to_string(scaler->state().good_steps);
  }
  if (epoch_end_is_due) state.extra[kEpochEnd] = "due";
  losses.flush();
  for (const auto& sink : sinks) sink->checkpoint();
  if (callbacks.on_save) callbacks.on_save(state);
  const bool behind = options.checkpoint_async && !last;
  if (behind && !background) {
    if (!group) alone = distributed::make_single_process_group();
    background.emplace(group ? *group : *alone);
    background->set_on_written([this](const std::string&, std::int64_t at) { checkpoints.written(at); });
  }
  const auto write = [&](const std::string& path) {
    if (behind && options.mesh) return options.mesh->save_checkpoint(path, optimizer, state, &*background);
    if (behind) return background->save(path, step.module(), optimizer, state);
    if (options.mesh) return options.mesh->save_checkpoint(path, optimizer, state);
    if (group) return distributed::save_checkpoint(path, step.module(), optimizer, state, *group);
    const distributed::WholeParameters whole = step.whole_parameters();
    if (auto* divided = dynamic_cast<distributed::ZeroRedundancyOptimizer*>(&optimizer)) divided->consolidate();
    nn::save_checkpoint(path, step.module(), optimizer, state);
  };
  last_save = Clock::now();
  if (is_rank0)
    for (const std::string& path : checkpoints.make_room(done))
      if (!std::exchange(told_of_room, true))
        message(fmt::format(
            "at step {}: the disk has no room for {} checkpoints and the next; '{}' was deleted, and so are "
            "the oldest whenever the next does not fit",
            done, options.keep_checkpoints, path));
  try {
    if (last) {
      if (!write_at_last("checkpoint", options.checkpoint, write)) return;
    } else {
      write(options.checkpoint);
    }
    saved_at = done;
    if (behind)
      under_way = done;
    else if (is_rank0)
      checkpoints.written(done);
  } catch (const Error& error) {
    if (group && group->failed()) throw;
    message(fmt::format("at step {}: {}; the training goes on", done, error.what()));
  }
}

bool Run::State::write_at_last(const std::string& what, const std::string& path,
                               const std::function<void(const std::string& path)>& write) {
  std::string failure;
  try {
    const std::string place = write_somewhere(path, write, failure);
    if (failure.empty()) return true;
    lost += fmt::format("{}{}; the {} is in '{}'", lost.empty() ? "" : "; ", failure, what, place);
  } catch (const Error& error) {
    if (group && group->failed()) throw;
    lost += fmt::format("{}the {} is lost: {}", lost.empty() ? "" : "; ", what, error.what());
  }
  return false;
}

void Run::State::save_weights() {
  const distributed::WholeParameters parameters = step.whole_parameters();
  const std::unique_ptr<nn::Module> whole = options.mesh ? options.mesh->whole() : nullptr;
  const nn::Module& module = whole ? *whole : step.module();
  on_rank0([&] {
    write_at_last("file of the weights", options.save, [&](const std::string& path) { nn::save(module, path); });
  });
}

}  // namespace lockstep::training
