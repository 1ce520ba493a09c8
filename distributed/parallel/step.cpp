#include "lockstep/distributed/parallel/step.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/data_parallel.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/lockstep_step.h"
#include "lockstep/distributed/parallel/share_runner.h"

namespace lockstep::distributed {

struct TrainingStep::Impl {
  virtual ~Impl() = default;
  virtual double run(const data::Batch& batch, const LossFunction& loss) = 0;
  // In one process: the end is an empty batch.
  virtual std::optional<double> join(const data::Batch& own, const LossFunction& loss) {
    if (own.size() == 0) return std::nullopt;
    return run(own, loss);
  }
  virtual Tensor enqueue(const data::Batch& batch, const LossFunction& loss) = 0;
  virtual std::string capture_obstacle() const { return {}; }
  virtual void abandon() {}
  virtual bool several_devices() const { return false; }
  virtual ProcessGroup* group() const { return nullptr; }
  virtual nn::Module& module() = 0;
  virtual const ReducerTrace* trace() const { return nullptr; }
  bool lockstep = false;
};

struct TrainingStep::Single final : Impl {
  Single(const Factory& factory, Device device, const TrainingStepOptions& options)
      : module_(factory()), accumulate_(options.accumulate) {
    LOCKSTEP_CHECK(module_, "[TrainingStep] the factory returned null");
    check_accumulate(options.accumulate, options.logical_shards, "TrainingStep");
    module_->to(device);
    if (options.logical_shards != 0)
      lockstep_ = make_local_lockstep_step(*module_, {module_.get()}, nullptr, options.logical_shards);
  }

  double run(const data::Batch& batch, const LossFunction& loss) override {
    const std::uint64_t count = steps_++;
    const std::uint64_t step = guarded_random_step().value_or(count);
    if (lockstep_) return (*lockstep_)(batch, step, loss);
    const SlicedLoss sliced = compute(batch, step, loss);
    return sliced.sum() / sliced.count();
  }
  Tensor enqueue(const data::Batch& batch, const LossFunction& loss) override {
    const std::uint64_t count = steps_++;
    const SlicedLoss sliced = compute(batch, guarded_random_step().value_or(count), loss);
    const NoGradGuard no_grad;
    return sliced.device_sum() / sliced.count();
  }
  SlicedLoss compute(const data::Batch& batch, std::uint64_t step, const LossFunction& loss) {
    LOCKSTEP_CHECK(batch.size() > 0, "[TrainingStep] the batch has no samples");
    const RandomKeyGuard key(step, 0);
    module_->zero_grad(/*set_to_none=*/true);
    data::Batch whole = batch;
    whole.global_size = batch.size();
    SlicedLoss sliced(*module_, std::move(whole), {.slices = accumulate_, .step = "TrainingStep"});
    sliced.begin([&](const data::Batch& slice) { return loss(*module_, slice); });
    sliced.finish(sliced.count());
    return sliced;
  }
  nn::Module& module() override { return *module_; }

  std::unique_ptr<nn::Module> module_;
  std::int64_t accumulate_;
  std::unique_ptr<LockstepStep> lockstep_;
  std::uint64_t steps_ = 0;
};

struct TrainingStep::Devices final : Impl {
  Devices(const Factory& factory, const TrainingStepOptions& options)
      : parallel_(factory, options.devices,
                  {.logical_shards = options.logical_shards, .accumulate = options.accumulate}) {}

  double run(const data::Batch& batch, const LossFunction& loss) override { return parallel_.step(batch, loss); }
  Tensor enqueue(const data::Batch&, const LossFunction&) override { return {}; }
  bool several_devices() const override { return true; }
  nn::Module& module() override { return parallel_.module(); }

  DataParallel parallel_;
};

struct TrainingStep::Borrowed : Impl {
  explicit Borrowed(DistributedDataParallel& ddp) : ddp_(ddp) {}

  double run(const data::Batch& batch, const LossFunction& loss) override {
    return ddp_.step(batch, [&](const data::Batch& part) { return loss(module(), part); });
  }
  Tensor enqueue(const data::Batch& batch, const LossFunction& loss) override {
    return ddp_.enqueue_step(batch, [&](const data::Batch& part) { return loss(module(), part); });
  }
  std::optional<double> join(const data::Batch& own, const LossFunction& loss) override {
    return ddp_.join_step(own, [&](const data::Batch& part) { return loss(module(), part); });
  }
  std::string capture_obstacle() const override { return ddp_.capture_obstacle(); }
  void abandon() override { ddp_.abandon_step(); }
  ProcessGroup* group() const override {
    ProcessGroup& group = ddp_.process_group();
    return group.world_size() > 1 ? &group : nullptr;
  }
  nn::Module& module() override { return ddp_.module(); }
  const ReducerTrace* trace() const override { return &ddp_.trace(); }

  DistributedDataParallel& ddp_;
};

struct TrainingStep::Processes final : Impl {
  Processes(std::unique_ptr<nn::Module> module, const TrainingStepOptions& options)
      : module_(std::move(module)),
        ddp_(*module_, *options.job,
             {.logical_shards = options.logical_shards,
              .accumulate = options.accumulate,
              .static_graph = options.static_graph,
              .hook = options.hook}),
        step_(ddp_) {}

  static std::unique_ptr<nn::Module> on_device(const Factory& factory, Device device) {
    auto module = factory();
    LOCKSTEP_CHECK(module, "[TrainingStep] the factory returned null");
    module->to(device);
    return module;
  }

  double run(const data::Batch& batch, const LossFunction& loss) override { return step_.run(batch, loss); }
  Tensor enqueue(const data::Batch& batch, const LossFunction& loss) override { return step_.enqueue(batch, loss); }
  std::optional<double> join(const data::Batch& own, const LossFunction& loss) override {
    return step_.join(own, loss);
  }
  std::string capture_obstacle() const override { return step_.capture_obstacle(); }
  void abandon() override { step_.abandon(); }
  ProcessGroup* group() const override { return step_.group(); }
  nn::Module& module() override { return *module_; }
  const ReducerTrace* trace() const override { return step_.trace(); }

  std::unique_ptr<nn::Module> module_;
  DistributedDataParallel ddp_;
  Borrowed step_;
};

TrainingStep::TrainingStep(DistributedDataParallel& ddp) : impl_(std::make_unique<Borrowed>(ddp)) {
  impl_->lockstep = ddp.is_lockstep();
}

TrainingStep::TrainingStep(const Factory& factory, TrainingStepOptions options) {
  LOCKSTEP_CHECK(!options.job || options.devices.empty(),
                 "[TrainingStep] both a job and devices were given; a process of a job trains on the job's device");
  LOCKSTEP_CHECK(
      !options.hook || options.job,
      "[TrainingStep] the communication hook '{}' was given without a job; a process alone sends no gradients",
      options.hook->name());
  if (options.job)
    impl_ = std::make_unique<Processes>(Processes::on_device(factory, options.job->device()), options);
  else if (options.devices.size() > 1)
    impl_ = std::make_unique<Devices>(factory, options);
  else
    impl_ = std::make_unique<Single>(factory, options.devices.empty() ? Device() : options.devices.front(), options);
  impl_->lockstep = options.logical_shards != 0;
}

TrainingStep::~TrainingStep() = default;
TrainingStep::TrainingStep(TrainingStep&&) noexcept = default;
TrainingStep& TrainingStep::operator=(TrainingStep&&) noexcept = default;

double TrainingStep::operator()(const data::Batch& batch, const LossFunction& loss) {
  return impl_->run(batch, loss);
}

std::string TrainingStep::enqueue_obstacle() const {
  if (impl_->lockstep) return "lockstep mode adds up on the host what the shards count";
  if (impl_->several_devices()) return "several devices are driven by threads that wait for each other";
  return {};
}

std::string TrainingStep::capture_obstacle() const {
  const std::string obstacle = enqueue_obstacle();
  return obstacle.empty() ? impl_->capture_obstacle() : obstacle;
}

void TrainingStep::abandon() {
  impl_->abandon();
}

Tensor TrainingStep::enqueue(const data::Batch& batch, const LossFunction& loss) {
  const std::string obstacle = enqueue_obstacle();
  LOCKSTEP_CHECK(obstacle.empty(), "[TrainingStep] enqueue() cannot be called: {}", obstacle);
  return impl_->enqueue(batch, loss);
}

ProcessGroup* TrainingStep::group() const {
  return impl_->group();
}

std::optional<double> TrainingStep::join(const data::Batch& own, const LossFunction& loss) {
  LOCKSTEP_CHECK(!impl_->lockstep,
                 "[TrainingStep] join() is not for lockstep mode, whose logical shards are those of one global batch; "
                 "leave out logical_shards");
  return impl_->join(own, loss);
}

nn::Module& TrainingStep::module() {
  return impl_->module();
}

const ReducerTrace* TrainingStep::trace() const {
  return impl_->trace();
}

}  // namespace lockstep::distributed
