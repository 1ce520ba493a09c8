#include "lockstep/distributed/parallel/step.h"

#include <atomic>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/workers/devices.h"
#include "lockstep/distributed/parallel/workers/ranks.h"

namespace lockstep::distributed {
namespace {

std::unique_ptr<nn::Module> make_on_device(const TrainingStep::Factory& factory, const TrainingStepOptions& options) {
  std::unique_ptr<nn::Module> module = factory();
  LOCKSTEP_CHECK(module, "[TrainingStep] the factory returned null");
  module->to(options.job ? options.job->device() : options.devices.empty() ? Device() : options.devices.front());
  return module;
}

}  // namespace

TrainingStep::TrainingStep(nn::Module& module, TrainingStepOptions options) : module_(&module) {
  make_workers(nullptr, options);
}

TrainingStep::TrainingStep(const Factory& factory, TrainingStepOptions options)
    : owned_(make_on_device(factory, options)), module_(owned_.get()) {
  make_workers(factory, options);
}

void TrainingStep::make_workers(const Factory& factory, const TrainingStepOptions& options) {
  check_options(options, *module_, /*has_factory=*/factory != nullptr);
  if (options.ranks())
    ranks_ = std::make_unique<Ranks>(*module_, options);
  else
    devices_ = std::make_unique<Devices>(*module_, factory, options);
}

TrainingStep::~TrainingStep() = default;
TrainingStep::TrainingStep(TrainingStep&&) noexcept = default;
// The workers go before the model that they work on.
TrainingStep& TrainingStep::operator=(TrainingStep&& other) noexcept {
  if (this == &other) return *this;
  ranks_ = std::move(other.ranks_);
  devices_ = std::move(other.devices_);
  owned_ = std::move(other.owned_);
  module_ = other.module_;
  steps_ = other.steps_;
  loads_seen_ = other.loads_seen_;
  return *this;
}

// The step of the random keys is the caller's, if it set one, else the count of steps here.
Tensor TrainingStep::operator()(const data::Batch& batch, const LossFunction& loss) {
  const std::uint64_t count = count_step();
  const std::uint64_t step = guarded_random_step().value_or(count);
  if (!ranks_) return devices_->step(batch, step, loss);
  return ranks_->group().attempt([&] { return ranks_->step(ranks_->part_of(batch), step, loss); });
}

std::optional<Tensor> TrainingStep::join(const data::Batch& own, const LossFunction& loss) {
  check_not_lockstep(is_lockstep(), "join_step()");
  if (!ranks_) return own.size() > 0 ? std::optional((*this)(own, loss)) : std::nullopt;
  const std::uint64_t step = guarded_random_step().value_or(next_step());
  std::optional<Tensor> mean = ranks_->group().attempt([&] { return ranks_->join_step(own, step, loss); });
  if (mean) ++steps_;
  return mean;
}

Tensor TrainingStep::forward(Tensor x) {
  if (ranks_) return ranks_->forward(std::move(x));
  return devices_->forward(x, count_step());
}

std::uint64_t TrainingStep::next_step() {
  const nn::detail::Resumption& resumed = module_->resumption();
  std::uint64_t seen = std::atomic_ref(loads_seen_).load(std::memory_order_relaxed);
  if (seen != resumed.loads && std::atomic_ref(loads_seen_).compare_exchange_strong(seen, resumed.loads))
    std::atomic_ref(steps_).store(resumed.step, std::memory_order_relaxed);
  return std::atomic_ref(steps_).load(std::memory_order_relaxed);
}

std::uint64_t TrainingStep::count_step() {
  next_step();
  return std::atomic_ref(steps_).fetch_add(1, std::memory_order_relaxed);
}

bool TrainingStep::is_lockstep() const {
  return ranks_ ? ranks_->is_lockstep() : devices_->is_lockstep();
}

WholeParameters TrainingStep::whole_parameters() {
  return WholeParameters(ranks_ ? ranks_->shards() : nullptr);
}

ProcessGroup* TrainingStep::group() const {
  return ranks_ && ranks_->group().world_size() > 1 ? &ranks_->group() : nullptr;
}

const std::vector<std::string>& TrainingStep::ignored_modules() const {
  static const std::vector<std::string> none;
  return ranks_ ? ranks_->ignored_modules() : none;
}

const ReducerTrace* TrainingStep::trace() const {
  return ranks_ ? &ranks_->reducer().trace() : nullptr;
}

std::string TrainingStep::capture_obstacle() const {
  return ranks_ ? ranks_->capture_obstacle() : devices_->capture_obstacle();
}

void TrainingStep::abandon() {
  if (ranks_) ranks_->abandon();
}

}  // namespace lockstep::distributed
