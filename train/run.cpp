#include "lockstep/train/run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/log.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/profile_file.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/failure/tell_launcher.h"
#include "lockstep/distributed/parallel/lockstep_fingerprint.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "lockstep/distributed/store/wire.h"
#include "lockstep/nn/module.h"
#include "lockstep/train/output.h"
#include "lockstep/train/run_state.h"

namespace lockstep::training {
namespace {

distributed::ProcessGroup* group_of(const distributed::TrainingStep& step, const RunOptions& options) {
  if (!options.mesh) return step.group();
  const distributed::ProcessGroupPtr& world = options.mesh->mesh().world();
  return world->world_size() > 1 ? world.get() : nullptr;
}

template <typename Callback, typename... Arguments>
void call(const Callback& callback, Arguments&&... arguments) {
  if (callback) callback(std::forward<Arguments>(arguments)...);
}

}  // namespace

Run::State::State(distributed::TrainingStep& step, optim::Optimizer& optimizer, const data::DataLoader& loader,
                  LossFunction loss, RunOptions given)
    : step(step),
      optimizer(optimizer),
      loader(loader),
      loss(std::move(loss)),
      options(std::move(given)),
      group(group_of(step, options)),
      is_rank0(!group || group->rank() == 0),
      update(step, optimizer,
             {.amp = options.amp,
              .scaler = options.scaler,
              .graph = options.graph,
              .max_grad_norm = options.max_grad_norm}),
      checkpoints(options.checkpoint, options.keep_checkpoints),
      agreement(group),
      losses([this](const StepReport& report) {
        look_at_loss(report);
        for (const auto& sink : sinks) sink->step(report);
      }) {
  const auto not_negative = [](const char* name, auto value) {
    LOCKSTEP_CHECK(value >= 0, "[run] {} is {}, expected 0 or more", name, value);
  };
  LOCKSTEP_CHECK(options.epochs >= 1, "[run] epochs is {}, expected 1 or more", options.epochs);
  not_negative("max_steps", options.max_steps);
  not_negative("max_grad_norm", options.max_grad_norm);
  LOCKSTEP_CHECK(!options.mesh || options.max_grad_norm == 0.0,
                 "[run] max_grad_norm is {} for a model that is divided over a mesh, of which no process has all "
                 "gradients; clip them by MeshModel::clip_grad_norm() in on_gradients",
                 options.max_grad_norm);
  not_negative("checkpoint_every", options.checkpoint_every);
  not_negative("checkpoint_minutes", options.checkpoint_minutes);
  const bool saves = options.checkpoint_every > 0 || options.checkpoint_minutes > 0 || options.resume == "auto";
  LOCKSTEP_CHECK(!saves || !options.checkpoint.empty(),
                 "[run] checkpoints every so often, or resumption from the newest, need a path: set checkpoint");
  const bool one_for_all = !options.checkpoint.empty() || !options.save.empty() || options.max_grad_norm > 0.0;
  LOCKSTEP_CHECK(!one_for_all || !group || step.ignored_modules().empty(),
                 "[run] the module '{}' is each rank's own (ignored_modules), and checkpoint, save and max_grad_norm "
                 "take rank 0's, or one norm, for all; leave them out, and have each rank save its modules in "
                 "on_epoch_end and clip in on_gradients",
                 step.ignored_modules().front());
  LOCKSTEP_CHECK(
      loader.steps_per_epoch() > 0,
      "[run] an epoch has no batch: the data set has {} sample(s){}, and a batch {}; is it the right file or "
      "folder?",
      loader.dataset().size(),
      loader.options().sampler ? fmt::format(", the sampler {}", loader.options().sampler->size()) : "",
      loader.options().batch_size);
  const std::int64_t steps_per_epoch = loader.steps_per_epoch();
  LOCKSTEP_CHECK(options.epochs <= std::numeric_limits<std::int64_t>::max() / steps_per_epoch,
                 "[run] {} epochs of {} steps are more than can be counted", options.epochs, steps_per_epoch);
  total_steps = options.epochs * steps_per_epoch;
  if (options.max_steps > 0) total_steps = std::min(total_steps, options.max_steps);
}

int Run::State::workers() const {
  if (options.workers > 0) return options.workers;
  return group ? group->world_size() : 1;
}

void Run::State::message(const std::string& text) {
  for (const auto& sink : sinks) sink->message(text);
}

void Run::State::begin() {
  LOCKSTEP_CHECK(!ended, "[run] train() was called twice; make a new Run");
  ended = true;
  note_contents();
  check_paths();
  if (group && group->world_size() > 1) {
    check_same_settings(settings_of_ranks(), *group);
    // Where files go is rank 0's business; whether there are any says which collectives all take part in.
    for (std::string* path : {&options.checkpoint, &options.save, &options.trace_hashes})
      *path = group->broadcast_object(*path);
  }
  checkpoints = Checkpoints(options.checkpoint, options.keep_checkpoints);
  on_rank0([&] {
    const auto [weights, state] = sizes();
    const std::int64_t every = options.checkpoint_minutes > 0 ? 1 : options.checkpoint_every;
    const std::int64_t saves = every > 0 ? (total_steps - 1) / every + 1 : 1;
    std::vector<Output> outputs = checkpoints.outputs(saves, weights + state);
    outputs.insert(outputs.end(),
                   {{.what = "file of the weights", .path = options.save, .bytes = weights},
                    {.what = "metrics file", .path = options.metrics, .whole = false},
                    {.what = "hash trace", .path = options.trace_hashes, .whole = false},
                    {.what = "profile", .path = options.profile.empty() ? "" : profile::file_name(options.profile)}});
    if (step.trace()) outputs.push_back({.what = "trace", .path = options.trace, .whole = false});
    // Written when the process ends, over whatever has that name then.
    if (const auto path = environment_variable("LOCKSTEP_PROFILE"))
      outputs.push_back({.what = "profile of LOCKSTEP_PROFILE", .path = profile::file_name(*path)});
    for (const auto& [what, path] : options.other_outputs) {
      const auto known = options.other_bytes.find(path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
      outputs.push_back({.what = what, .path = path, .bytes = known == options.other_bytes.end() ? 0 : known->second});
    }
    try_outputs(outputs);
    checkpoints.check_names();
    if (!options.checkpoint.empty()) checkpoint_lock.emplace(options.checkpoint);
    if (!options.save.empty()) weights_lock.emplace(options.save, "file of the weights");
  });
  resume();
  on_rank0([&] {
    const bool own = !resumed_from.empty() && checkpoints.contains(resumed_from);
    checkpoints.refuse_others(done, run_name, own);
    if (!own || run_name.empty()) run_name = distributed::make_token().substr(0, 16);
  });
  if (group) run_name = group->broadcast_object(run_name);
  first_step = done;
  if (is_rank0) {
    const bool bar =
        options.progress == Progress::bar || (options.progress == Progress::automatic && ::isatty(STDOUT_FILENO) != 0);
    if (options.progress != Progress::none) sinks.insert(sinks.begin(), console(bar, group && group->world_size() > 1));
    if (!options.metrics.empty()) sinks.push_back(json_lines(options.metrics));
  } else {
    sinks.clear();
  }
  for (const auto& sink : sinks)
    sink->begin({.total_steps = total_steps,
                 .first_step = first_step,
                 .batch_size = loader.options().batch_size * options.units_per_sample,
                 .unit = options.unit});
  if (!resumed.empty()) message(resumed);
  if (const Device device = step.module().device(); device.is_cuda())
    message(fmt::format("device: {} ({})", to_string(device), cuda::device_name(device.index)));
  if (const std::string obstacle = update.obstacle(); !obstacle.empty())
    message(fmt::format("no CUDA graph: {}", obstacle));
  const auto model = options.settings.find("model");
  hashes.emplace(is_rank0 ? options.trace_hashes : std::string(),
                 fmt::format("{} on {} worker(s), batch {}; {}",
                             model == options.settings.end() ? step.module().type_name() : model->second, workers(),
                             loader.options().batch_size,
                             distributed::lockstep_fingerprint(options.logical_shards, step.module().device())),
                 first_step > 0);
  signal.emplace(!options.checkpoint.empty());
  last_save = Clock::now();
}

void Run::State::look_at_loss(const StepReport& report) {
  if (is_rank0 && !told_of_loss && !std::isfinite(report.loss)) {
    logging::warn(
        "[run] the loss of step {} is {}{}: weights that follow it may be of no use. Look for such values in the data, "
        "lower the learning rate, or limit gradients (max_grad_norm); the training goes on",
        report.step, report.loss, last_loss ? fmt::format(", after {:.4g}", *last_loss) : "");
    told_of_loss = true;
  }
  last_loss = report.loss;
}

void Run::State::train_epoch(std::int64_t epoch) {
  call(callbacks.on_epoch_begin, epoch);
  check_order(epoch);
  const auto start = Clock::now();
  auto batches = loader.epoch(epoch, done - epoch * loader.steps_per_epoch());
  for (const data::Batch& batch : batches) {
    profile(false);
    const std::int64_t number = done;
    const Tensor value = train_on(batch);
    const std::int64_t units = batch.global_size * options.units_per_sample;
    samples += units;
    losses.add({.step = number, .epoch = epoch, .learning_rate = optimizer.lr(), .samples = units}, value);
    call(callbacks.on_step_end, number, value);
    write_step_trace();

    bool save = options.checkpoint_every > 0 && done % options.checkpoint_every == 0;
    if (!options.checkpoint.empty()) {
      const bool is_due =
          options.checkpoint_minutes > 0 &&
          Clock::now() - last_save >= std::chrono::duration<double, std::ratio<60>>(options.checkpoint_minutes);
      const Agreement::Decision decision = agreement.after_step(signal->came(), is_due);
      save = save || decision.save;
      if (decision.stop && done < total_steps) {
        stopped_by = signal->number() == SIGPIPE ? SIGPIPE : SIGTERM;
        // Ranks that end with one that was told to are not the cause.
        distributed::tell_launcher("was asked to end by a signal", /*own=*/signal->came());
      }
    }
    if (stopped_by != 0) stopping = true;
    meet_at_stop();
    if (done == total_steps || stopping) break;
    if (save && done % loader.steps_per_epoch() == 0)
      saves_after_epoch = true;
    else if (save)
      save_checkpoint(false);
  }
  losses.flush();
  seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

Tensor Run::State::train_on(const data::Batch& batch) {
  const RandomKeyGuard key(static_cast<std::uint64_t>(done), 0);
  if (schedule) schedule->set_position(done);
  call(callbacks.on_step_begin, done);
  std::function<void()> on_gradients;
  if (callbacks.on_gradients) on_gradients = [this] { callbacks.on_gradients(done); };
  // The update lets go of gradients that are divided over ranks, so the trace needs them before.
  auto* const divided = dynamic_cast<distributed::ZeroRedundancyOptimizer*>(&optimizer);
  const bool traces = !options.trace_hashes.empty();
  std::vector<Tensor> traced;
  std::function<void()> before_update;
  if (traces && divided && divided->is_of_divided_gradients())
    before_update = [&] {
      divided->visit_gradients([&](const Tensor& parameter, const Tensor& grad) {
        parameter.set_grad(copy_contiguous(grad));
        traced.push_back(parameter);
      });
    };
  const Tensor value = update(batch, loss, on_gradients, before_update);
  if (traces) trace(value);
  for (const Tensor& parameter : traced) parameter.set_grad({});
  ++done;
  return value;
}

// A checkpoint at the end of an epoch comes after this, since a run that resumes from it begins with the next epoch.
void Run::State::end_epoch(std::int64_t epoch) {
  evaluate(epoch);
  call(callbacks.on_epoch_end, epoch);
  epoch_end_is_due = false;
  if (std::exchange(saves_after_epoch, false) && !stopping) save_checkpoint(false);
}

void Run::State::evaluate(std::int64_t epoch) {
  if (!evaluation || measured_at == done) return;
  measured = evaluation->measure(step.module(), step.group());
  measured_at = done;
  if (epoch < 0) return;
  for (const auto& sink : sinks) sink->evaluation(done - 1, epoch, measured);
  const distributed::WholeParameters whole = step.whole_parameters();
  call(callbacks.on_evaluation, epoch, measured);
}

Result Run::State::finish() {
  Result result;
  result.stopped_by = stopped_by;
  profile(true);
  if (stopped_by == 0) evaluate(-1);
  check_weights();
  if (!options.checkpoint.empty()) save_checkpoint(true);
  if (stopped_by == 0 && !options.save.empty()) save_weights();
  result.evaluation = measured;
  result.steps = done - first_step;
  result.seconds = seconds;
  result.samples_per_s = seconds > 0 ? static_cast<double>(samples) / seconds : 0.0;
  const distributed::WholeParameters whole = step.whole_parameters();
  if (options.mesh) {
    std::tie(result.weights_sha256, result.state_sha256) = options.mesh->sha256();
  } else {
    result.weights_sha256 = nn::weights_sha256(step.module());
    result.state_sha256 = nn::state_sha256(step.module());
  }
  signal.reset();
  checkpoint_lock.reset();
  weights_lock.reset();
  hashes.reset();
  const auto stopped = [&](const char* signal_name) {
    return fmt::format("stopped by {} after step {} of {}; '{}' holds the training, go on with --resume auto",
                       signal_name, done, total_steps, options.checkpoint);
  };
  if (stopped_by == SIGTERM) message(stopped("SIGTERM"));
  if (stopped_by == SIGPIPE && is_rank0) logging::warn("nobody reads stdout any more: {}", stopped("SIGPIPE"));
  // All ranks end together, and alike: one that ended with an error would have the launcher end rank 0 too.
  on_rank0([&] {
    for (const auto& sink : sinks) {
      try {
        sink->end(result);
      } catch (const Error& error) {
        lost += fmt::format("{}{}", lost.empty() ? "" : "; ", error.what());
      }
    }
  });
  if (group) lost = group->broadcast_object(lost);
  if (!lost.empty()) throw UnwrittenError::of_all_ranks("[run] " + lost);
  return result;
}

Run::Run(distributed::TrainingStep& step, optim::Optimizer& optimizer, const data::DataLoader& loader,
         LossFunction loss, RunOptions options)
    : state_(std::make_unique<State>(step, optimizer, loader, std::move(loss), std::move(options))) {}

Run::~Run() = default;

std::int64_t Run::total_steps() const {
  return state_->total_steps;
}

void Run::set_schedule(optim::Schedule learning_rate, optim::Schedule momentum) {
  set_schedule(std::vector<optim::Schedule>{std::move(learning_rate)}, std::move(momentum));
}

void Run::set_schedule(std::vector<optim::Schedule> learning_rates, optim::Schedule momentum) {
  state_->schedule.emplace(state_->optimizer, std::move(learning_rates), std::move(momentum));
}

void Run::set_evaluation(Evaluation evaluation) {
  LOCKSTEP_CHECK(evaluation.dataset && evaluation.sums, "[run] an evaluation needs a data set and a function");
  LOCKSTEP_CHECK(evaluation.dataset->size() > 0,
                 "[run] the data set of the evaluation is empty; is it the right file or folder?");
  state_->evaluation = std::move(evaluation);
}

void Run::add_sink(std::unique_ptr<Sink> sink) {
  LOCKSTEP_CHECK(sink, "[run] add_sink() was given null");
  state_->sinks.push_back(std::move(sink));
}

Callbacks& Run::callbacks() {
  return state_->callbacks;
}

void Run::stop() {
  state_->stopping = true;
}

bool Run::is_to_stop() const {
  return state_->stopping || (state_->signal && state_->signal->came());
}

int Run::train_and_write(const std::function<void()>& write) {
  Result result;
  std::string lost;
  const auto attempt = [&](const auto& body) {
    try {
      body();
    } catch (const UnwrittenError& error) {
      // The others leave in good order while rank 0 writes.
      if (error.is_of_all_ranks() && !state_->is_rank0) return;
      lost += fmt::format("{}{}", lost.empty() ? "" : "; ", error.what());
    }
  };
  attempt([&] { train(); });
  result.stopped_by = state_->stopped_by;
  if (result.stopped_by == 0) attempt(write);
  if (!lost.empty()) throw UnwrittenError(lost);
  return result.exit_status();
}

Result Run::train() {
  State& run = *state_;
  run.begin();
  if (run.epoch_end_is_due) run.end_epoch(run.done / run.loader.steps_per_epoch() - 1);
  while (run.done < run.total_steps && !run.stopping) {
    const std::int64_t epoch = run.done / run.loader.steps_per_epoch();
    run.train_epoch(epoch);
    run.epoch_end_is_due = run.stopped_by != 0 && run.done % run.loader.steps_per_epoch() == 0;
    if (run.stopped_by != 0) break;
    run.end_epoch(epoch);
  }
  run.meet_at_stop();
  return run.finish();
}

}  // namespace lockstep::training
