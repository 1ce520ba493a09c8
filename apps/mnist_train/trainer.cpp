#include "apps/mnist_train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>

#include "apps/mnist_train/evaluate.h"
#include "apps/mnist_train/hash_trace.h"
#include "apps/mnist_train/loss_log.h"
#include "apps/mnist_train/reporter.h"
#include "apps/mnist_train/trace.h"
#include "apps/models/models.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/mnist.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/capture.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/lockstep_fingerprint.h"
#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/reduction/power_sgd.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/optim/optim.h"
#include "lockstep/nn/safetensors.h"
#include "lockstep/nn/weights_hash.h"

namespace lockstep::apps {
namespace {

using Clock = std::chrono::steady_clock;

std::shared_ptr<const data::Dataset> open_dataset(const TrainOptions& options, bool train) {
  if (options.dataset == "mnist") return data::mnist(options.data_dir, {.train = train});
  return data::fashion_mnist(options.data_dir, {.train = train});
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainOptions& options, std::vector<Tensor> parameters) {
  const double lr = options.learning_rate();
  if (options.optimizer == "adam")
    return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = lr});
  if (options.optimizer == "adamw")
    return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = lr});
  return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = lr, .momentum = options.momentum});
}

distributed::CommunicationHookPtr make_hook(const TrainOptions& options) {
  if (options.compress == "fp16") return distributed::fp16_compression();
  if (options.compress == "bf16") return distributed::bf16_compression();
  if (options.compress == "powersgd") return distributed::power_sgd();
  return nullptr;
}

// The learning rate as a function of the step's number, so that a resumed run goes on where it stopped.
optim::Schedule make_schedule(const TrainOptions& options, std::int64_t total_steps) {
  const double lr = options.learning_rate();
  if (options.schedule == "cosine") return optim::CosineAnnealing{.lr = lr, .period = total_steps};
  if (options.schedule == "one-cycle") return optim::OneCycle{.max_lr = lr, .total_steps = total_steps};
  return [lr](std::int64_t) { return lr; };
}

double number_of(const std::string& text, const std::string& path) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  LOCKSTEP_CHECK(!text.empty() && *end == 0, "'{}' is damaged: its loss scale is '{}'; resume from another checkpoint",
                 path, text);
  return value;
}

class Trainer {
 public:
  explicit Trainer(const TrainOptions& options)
      : options_(options),
        job_(join(options)),
        train_set_(open_dataset(options, true)),
        test_set_(open_dataset(options, false)),
        loader_(train_set_, loader_options()) {
    manual_seed(options_.seed);
    train_step_.emplace([&] { return models::make_model(options_.model); }, step_options());
    if (options_.sync_batch_norm) distributed::convert_sync_batch_norm(module(), job_->process_group());
    const auto make = [&](std::vector<Tensor> parameters) { return make_optimizer(options_, std::move(parameters)); };
    if (options_.zero)
      optimizer_ =
          std::make_unique<distributed::ZeroRedundancyOptimizer>(module().parameters(), job_->process_group(), make);
    else
      optimizer_ = make(module().parameters());
    if (options_.amp == "fp16") scaler_.emplace();
    captured_step_.emplace(*train_step_, *optimizer_,
                           distributed::CapturedStepOptions{.capture = options_.graph && !scaler_});
    total_steps_ = options_.epochs * loader_.steps_per_epoch();
    if (options_.max_steps > 0) total_steps_ = std::min(total_steps_, options_.max_steps);
    schedule_ = make_schedule(options_, total_steps_);
    resume();
  }

  void run() {
    Reporter reporter({.enabled = is_rank0(),
                       .progress_bar = options_.shows_progress_bar(),
                       .metrics = options_.metrics,
                       .batch_size = options_.batch_size,
                       .total_steps = total_steps_,
                       .first_step = step_});
    if (!resumed_.empty()) reporter.message(resumed_);
    if (device().is_cuda())
      reporter.message(fmt::format("device: {} ({})", to_string(device()), cuda::device_name(device().index)));
    if (device().is_cuda() && options_.graph && !captured_step_->obstacle().empty())
      reporter.message(fmt::format("no CUDA graph: {}", scaler_
                                                            ? "whether float16 gradients overflowed is read each step"
                                                            : captured_step_->obstacle()));
    HashTrace hashes(is_rank0() ? options_.trace_hashes : std::string(), describe_run(), step_ > 0);
    const std::int64_t first_step = step_;
    std::int64_t images = 0;
    double seconds = 0.0;
    Evaluation last;
    std::int64_t evaluated_at = -1;
    while (step_ < total_steps_) {
      const std::int64_t epoch = step_ / loader_.steps_per_epoch();
      const auto start = Clock::now();
      images += train_epoch(epoch, reporter, hashes);
      seconds += std::chrono::duration<double>(Clock::now() - start).count();
      last = evaluate(module(), test_set_, group());
      evaluated_at = step_;
      reporter.evaluation(epoch, last.accuracy, last.loss);
    }
    if (evaluated_at != step_) last = evaluate(module(), test_set_, group());
    if (!options_.checkpoint.empty()) save_checkpoint();
    if (is_rank0() && !options_.save.empty()) nn::save(module(), options_.save);
    reporter.result({.test_accuracy = last.accuracy,
                     .test_loss = last.loss,
                     .steps = step_ - first_step,
                     .seconds = seconds,
                     .images_per_s = seconds > 0 ? static_cast<double>(images) / seconds : 0.0,
                     .weights_sha256 = nn::weights_sha256(module())});
  }

 private:
  static std::optional<distributed::Job> join(const TrainOptions& options) {
    if (options.mode != Mode::ddp) return std::nullopt;
    distributed::InitOptions init;
    init.init_method = options.init_method;
    init.backend = options.backend;
    init.device = options.device;
    init.timeout = distributed::Milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
    return distributed::init(init);
  }

  nn::Module& module() { return train_step_->module(); }
  Device device() { return module().device(); }
  int rank() const { return job_ ? job_->rank() : 0; }
  bool is_rank0() const { return rank() == 0; }
  distributed::ProcessGroup* group() const { return job_ ? job_->process_group().get() : nullptr; }

  distributed::TrainingStepOptions step_options() const {
    distributed::TrainingStepOptions step{.job = job_ ? &*job_ : nullptr,
                                          .logical_shards = options_.lockstep,
                                          .accumulate = options_.accumulate,
                                          .hook = make_hook(options_)};
    if (options_.mode == Mode::dp) step.devices = options_.devices;
    if (options_.mode == Mode::single) step.devices = {Device(options_.device)};
    return step;
  }

  int workers() const {
    if (job_) return job_->world_size();
    return options_.mode == Mode::dp ? static_cast<int>(options_.devices.size()) : 1;
  }

  std::string fingerprint() const {
    return options_.lockstep > 0 ? distributed::lockstep_fingerprint(options_.lockstep) : std::string();
  }

  std::string describe_run() const {
    return fmt::format("{} on {} worker(s), batch {}; {}", options_.model, workers(), options_.batch_size,
                       distributed::lockstep_fingerprint(options_.lockstep));
  }

  data::DataLoaderOptions loader_options() const {
    data::DataLoaderOptions loader;
    loader.batch_size = options_.batch_size;
    loader.seed = options_.seed;
    // Where several devices share a batch it is cut on the host.
    if (options_.mode != Mode::dp) loader.device = job_ ? job_->device() : Device(options_.device);
    if (job_) {
      loader.rank = job_->rank();
      loader.world_size = job_->world_size();
      loader.logical_shards = options_.lockstep;
    }
    return loader;
  }

  // Returns the number of images of all ranks together.
  std::int64_t train_epoch(std::int64_t epoch, Reporter& reporter, HashTrace& hashes) {
    const std::int64_t first = epoch * loader_.steps_per_epoch();
    std::int64_t images = 0;
    auto batches = loader_.epoch(static_cast<std::uint64_t>(epoch), step_ - first);
    LossLog losses(reporter);
    for (const data::Batch& batch : batches) {
      const RandomKeyGuard key(static_cast<std::uint64_t>(step_), 0);
      optimizer_->set_lr(schedule_(step_));
      const Tensor loss = train_on(batch);
      hashes.step(step_, loss, module());
      images += batch.global_size;
      losses.add(step_, epoch, loss, batch.global_size);
      ++step_;
      write_trace();
      if (options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0) save_checkpoint();
      if (step_ == total_steps_) break;
    }
    losses.flush();
    return images;
  }

  // One step; gives its loss.
  Tensor train_on(const data::Batch& batch) {
    const auto loss_of = [this](nn::Module& net, const data::Batch& part) {
      std::optional<AutocastGuard> autocast;
      if (options_.amp != "off") autocast.emplace(scaler_ ? kFloat16 : kBFloat16, part.x.device().type);
      const Tensor loss = cross_entropy(net.forward(part.x), part.y);
      return scaler_ ? scaler_->scale(loss) : loss;
    };
    if (!scaler_) return (*captured_step_)(batch, loss_of);
    const double loss = (*train_step_)(batch, loss_of) / scaler_->scale_factor();
    scaler_->step(*optimizer_);
    scaler_->update();
    return scalar_tensor(loss, {.dtype = kFloat64});
  }

  // Of an early step, when everything that is made once has been made.
  void write_trace() {
    constexpr std::int64_t kTracedStep = 5;
    if (options_.trace.empty() || !is_rank0() || !train_step_->trace()) return;
    if (step_ != std::min(kTracedStep, total_steps_)) return;
    write_step_trace(options_.trace, *train_step_->trace(), group()->records());
  }

  void save_checkpoint() {
    nn::TrainingState state;
    state.seed = options_.seed;
    state.step = step_;
    state.epoch = step_ / loader_.steps_per_epoch();
    state.logical_shards = options_.lockstep;
    state.fingerprint = fingerprint();
    state.extra = run_settings();
    state.extra["workers"] = std::to_string(workers());
    if (scaler_) {
      state.extra["loss_scale"] = fmt::format("{}", scaler_->state().scale);
      state.extra["loss_scale_steps"] = std::to_string(scaler_->state().good_steps);
    }
    if (job_)
      distributed::save_checkpoint(options_.checkpoint, module(), *optimizer_, state, *group());
    else
      nn::save_checkpoint(options_.checkpoint, module(), *optimizer_, state);
  }

  // What must be the same for a resumed run to go on as the first one would have.
  nn::Metadata run_settings() const {
    return {
        {"model", options_.model},
        {"dataset", options_.dataset},
        {"batch_size", std::to_string(options_.batch_size)},
        {"amp", options_.amp},
    };
  }

  // In a job it is rank 0's disk that counts.
  void resume() {
    std::string path = options_.resume_from();
    if (job_) path = distributed::broadcast_text(path, *group());
    if (path.empty()) return;
    if (!job_) return resume(path, path);
    const distributed::Rank0File file(path, *group());
    file.read([&](const std::string& here) { resume(path, here); });
  }

  // From the checkpoint that is called `path`, and can be opened as `file`.
  void resume(const std::string& path, const std::string& file) {
    const nn::TrainingState saved = nn::read_training_state(file);
    LOCKSTEP_CHECK(saved.seed == options_.seed, "'{}' was trained with --seed {}, not {}; pass the same seed", path,
                   saved.seed, options_.seed);
    const auto setting = [&](const std::string& name) {
      const auto found = saved.extra.find(name);
      if (found != saved.extra.end()) return found->second;
      return std::string(name == "amp" ? "off" : "unknown");  // --amp is younger than some checkpoints
    };
    for (const auto& [name, value] : run_settings())
      LOCKSTEP_CHECK(setting(name) == value, "'{}' was trained with {} {}, not {}; pass the same one", path, name,
                     setting(name), value);
    LOCKSTEP_CHECK(saved.logical_shards == options_.lockstep,
                   "'{}' was trained with --lockstep {}, not {} (0: without); pass the same number", path,
                   saved.logical_shards, options_.lockstep);
    LOCKSTEP_CHECK(
        saved.fingerprint == fingerprint(),
        "'{}' cannot be continued with the same bits: it comes from \"{}\", this is \"{}\"; continue it on a "
        "machine and with a build like those, or train without --lockstep",
        path, saved.fingerprint, fingerprint());
    LOCKSTEP_CHECK(saved.step <= total_steps_, "'{}' is at step {}, past the {} steps of this run; raise --epochs",
                   path, saved.step, total_steps_);
    nn::load_checkpoint(file, module(), *optimizer_);
    if (scaler_)
      scaler_->load_state({.scale = number_of(setting("loss_scale"), path),
                           .good_steps = static_cast<std::int64_t>(number_of(setting("loss_scale_steps"), path))});
    step_ = saved.step;
    resumed_ = fmt::format("resumed from '{}' at step {} on {} worker(s), saved on {}", path, step_, workers(),
                           setting("workers"));
  }

  const TrainOptions& options_;
  std::optional<distributed::Job> job_;
  std::shared_ptr<const data::Dataset> train_set_;
  std::shared_ptr<const data::Dataset> test_set_;
  data::DataLoader loader_;
  std::optional<distributed::TrainingStep> train_step_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<optim::GradScaler> scaler_;
  std::optional<distributed::CapturedStep> captured_step_;
  optim::Schedule schedule_;
  std::int64_t total_steps_ = 0;
  std::int64_t step_ = 0;
  std::string resumed_;  // what to say about it
};

}  // namespace

void train(const TrainOptions& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  Trainer(options).run();
}

}  // namespace lockstep::apps
