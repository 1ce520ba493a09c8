#include "lockstep/distributed/parallel/workers/ranks.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/lockstep_fingerprint.h"
#include "lockstep/distributed/parallel/model_part.h"
#include "lockstep/distributed/parallel/sharding/sharded_reduction.h"
#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "lockstep/distributed/process_group/coalesced.h"

namespace lockstep::distributed {
namespace {

std::unique_ptr<ShardSums> make_sums(nn::Module& module, const ProcessGroup& group,
                                     const TrainingStepOptions& options) {
  const std::int64_t shards = options.logical_shards;
  if (shards == 0) return nullptr;
  const ShardRange mine = shards_of_worker(shards, group.world_size(), group.rank());
  if (options.model_part) return std::make_unique<ShardSums>(module, options.model_part->trained(), shards, mine);
  return std::make_unique<ShardSums>(module, shards, mine);
}

/// A step in its thread, while it runs.
class StepHere {
 public:
  StepHere(const TrainingStepOptions& options, int ranks, std::int64_t samples, bool empty_slices)
      : options_(options),
        ranks_(ranks),
        samples_(samples),
        empty_slices_(empty_slices),
        outer_(std::exchange(now_, this)) {}
  ~StepHere() { now_ = outer_; }
  StepHere(const StepHere&) = delete;
  StepHere& operator=(const StepHere&) = delete;
  static const StepHere* now() { return now_; }

  /// What is read in its loss is gathered by ranks that come to it equally often, or not at all.
  void check_even(const ProcessGroup& readers) const {
    if (readers.world_size() != ranks_ || options_.model_part) return;
    for (int rank = 1; rank < ranks_; ++rank)
      LOCKSTEP_CHECK(passes_of(rank) == passes_of(0),
                     "[TrainingStep] a model that is divided over ranks is read in the loss of another one's step, of "
                     "which rank 0 computes {} parts and rank {} computes {}; its ranks must read it equally often, "
                     "and the batch of {} samples cannot be so divided: leave it out, or keep that model whole",
                     passes_of(0), rank, passes_of(rank), samples_);
  }

  void check_recorded(const ProcessGroup& group, const char* what) const {
    if (options_.logical_shards == 0) return;
    const auto job_ranks = [](const ProcessGroup& of) {
      std::vector<int> ranks = of.options().ranks;
      for (int r = 0; of.options().ranks.empty() && r < of.world_size(); ++r) ranks.push_back(r);
      std::ranges::sort(ranks);
      return ranks;
    };
    std::vector<int> both;
    std::ranges::set_intersection(job_ranks(group), job_ranks(*options_.ranks()), std::back_inserter(both));
    LOCKSTEP_CHECK(
        both.size() < 2,
        "[{}] was called in the loss of a step in lockstep mode by ranks that share its batch: each computes its "
        "logical shards one by one, so that what a shard gets from others depends on the number of ranks; leave out "
        "logical_shards (now {}), or call it on a group of ranks that compute the same samples",
        what, options_.logical_shards);
  }

 private:
  std::size_t passes_of(int rank) const {
    const std::int64_t shards = options_.logical_shards;
    if (shards > 0) return shards_of_part(samples_, shards, shards_of_worker(shards, ranks_, rank)).size();
    return slices_of_part(samples_of_worker(samples_, 0, ranks_, rank).size(), options_.accumulate, empty_slices_)
        .size();
  }

  static thread_local const StepHere* now_;
  const TrainingStepOptions& options_;
  const int ranks_;
  const std::int64_t samples_;
  const bool empty_slices_;
  const StepHere* const outer_;
};

thread_local const StepHere* StepHere::now_ = nullptr;

}  // namespace

void Ranks::check_recorded(const ProcessGroup& group, const char* what) {
  if (StepHere::now()) StepHere::now()->check_recorded(group, what);
}

Ranks::Ranks(nn::Module& module, const TrainingStepOptions& options)
    : module_(module),
      group_(options.ranks()),
      options_(options),
      shared_(shared_state(module, options)),
      buffers_(shared_.buffers.values()),
      frozen_(module),
      same_batch_(group_),
      sums_(make_sums(module, *group_, options)) {
  Division::check_undivided(module);
  if (options.model_part) {
    runner_ = options.model_part->make_runner(options, sums_.get());
    std::size_t first = 0;
    for (const auto& list : options.model_part->trained())
      lists_.emplace_back(std::exchange(first, first + list.size()), list.size());
  } else {
    auto whole = sums_ ? std::make_unique<ShareRunner>(module, *sums_)
                       : std::make_unique<ShareRunner>(module, options.accumulate);
    whole_model_ = whole.get();
    runner_ = std::move(whole);
  }
  if (group_->rank() == 0) runner_->look_for_unregistered();
  check_agreement(shared_, options_, *group_);
  if (!shared_.own_parameters.empty() && group_->world_size() > 1)
    own_gradients_.emplace(shared_.own_parameters, optim::detail::GradientsInParts::Kind::own,
                           "is this rank's own (ignored_modules), others are shared by all ranks, which a norm of both "
                           "would scale by a factor of each rank's own; call this function once for each kind");
  if (sums_) check_fingerprint_agreement(lockstep_fingerprint(options_.logical_shards, module_.device()), *group_);
  broadcast_coalesced(shared_.tensors(), *group_);
  if (options_.zero != 0) {
    divide();
    return;
  }
  reducer_ = sums_ ? std::make_unique<Reducer>(*sums_, group_, options_)
                   : std::make_unique<Reducer>(reduced_parameters(module_, options_), group_, options_);
}

void Ranks::divide() {
  const Device device = module_.device();
  division_ = Division::make(module_, options_, group_->rank(), group_->world_size());
  std::vector<std::vector<std::size_t>> buckets;
  for (std::size_t f = 0; f < division_->reduced_flats; ++f) buckets.push_back(division_->flats[f].members);
  if (division_->values_too) {
    shards_ = ParameterShards::make(module_, division_, *group_);  // its hooks run before the reducer's
    if (whole_model_) whole_model_->gather_by(shards_.get());
  }
  runner_->divided_by(division_);
  auto whole = sums_ ? tree_reduction(group_, device, *sums_) : mean_reduction(group_, device, nullptr);
  reducer_ = std::make_unique<Reducer>(reduced_parameters(module_, options_),
                                       sharded_reduction(group_, division_, std::move(whole), sums_.get()), group_,
                                       options_, buckets);
}

// An undivided optimizer would find no gradients, and change nothing.
void Ranks::check_optimizer() const {
  LOCKSTEP_CHECK(division_->optimizers > 0 || std::ranges::none_of(division_->has_gradient, std::identity()),
                 "[TrainingStep] the last step's gradients are divided over {} ranks (zero = {}), and no "
                 "ZeroRedundancyOptimizer was made with this step to use them; make one, as zero_redundancy() does",
                 division_->world, options_.zero);
}

void Ranks::abandon() {
  reducer_->abandon_pass();
  if (sums_) sums_->begin();
  if (shards_) shards_->abandon();
}

data::Batch Ranks::part_of(const data::Batch& batch) {
  data::Batch part = batch;
  const std::int64_t size = batch.size();
  if (part.global_size == 0) part.global_size = size;
  LOCKSTEP_CHECK(part.global_size > 0, "[TrainingStep] the global batch is empty: it has no samples");
  if (module_.device().is_cpu()) same_batch_.look(batch);
  const data::Range mine =
      samples_of_worker(part.global_size, options_.logical_shards, group_->world_size(), group_->rank());
  if (part.global_size == batch.size()) return rows_of(part, mine);
  LOCKSTEP_CHECK(
      !sums_ || part.size() == mine.size(),
      "[lockstep] this worker was given {} samples of a batch of {}; its shards {} to {} of {} hold {}; pass "
      "the global batch, or give the loader the number of logical shards",
      part.size(), part.global_size, sums_->mine().begin, sums_->mine().end - 1, sums_->shards(), mine.size());
  return part;
}

Tensor Ranks::step(const data::Batch& part, std::uint64_t step, const LossFunction& loss) {
  frozen_.check();
  if (division_) check_optimizer();
  // In lockstep mode every call is a step of all ranks; else no_sync() may make several of one.
  group_->set_step(static_cast<std::int64_t>(step), /*checked=*/sums_ != nullptr);
  reducer_->clear_gradients();
  for (const Tensor& own : shared_.own_parameters) own.set_grad({});
  share_buffers(std::exchange(buffers_root_, 0));
  // Ranks draw as different shards of the step, so that dropout differs between them.
  const RandomKeyGuard key(step, static_cast<std::uint32_t>(group_->rank()));
  const bool empty_slices = !first_sync_batch_norm(module_).empty();
  const StepHere here(options_, group_->world_size(), part.global_size, empty_slices);
  if (!shards_) return compute(part, step, loss, empty_slices);
  try {
    shards_->begin_step(whole_model_ ? whole_model_->passes_of(part, empty_slices) : 0);
    Tensor mean = compute(part, step, loss, empty_slices);
    shards_->end_step();
    return mean;
  } catch (...) {
    abandon();
    throw;
  }
}

// A sum in a half type is divided before it is rounded, when the divisor is known.
bool Ranks::can_divide_later() const {
  return !sums_ || std::ranges::none_of(sums_->parameters(), [](const nn::NamedTensor& each) {
    return element_size(each.tensor.dtype()) < 4;
  });
}

Tensor Ranks::compute(const data::Batch& part, std::uint64_t step, const LossFunction& loss, bool empty_slices) {
  RankReduction& reduction = reducer_->reduction();
  // A reduction divides by the number of ranks, or (lockstep mode) by the count of all losses.
  const double scale = sums_ ? 1.0 : static_cast<double>(group_->world_size());
  runner_->when_final({});
  if (options_.model_part && reducer_->synchronize() && can_divide_later())
    runner_->when_final([this](std::size_t list) { reducer_->reduce_early(lists_[list].first, lists_[list].second); });
  {
    std::optional<NoSync> accumulating;
    if (sums_ || options_.accumulate > 1 || options_.model_part) accumulating.emplace(*reducer_);
    runner_->begin(part, step, loss, scale, empty_slices);
  }
  if (sums_) sums_->note_rows(part);
  reduction.sum_losses(*runner_, part.global_size);
  const std::uint64_t reduced_before = reducer_->passes();
  try {
    // Of a part of a model every rank asks what was counted, also one without samples.
    const bool computes = runner_->pending();
    if (shards_) shards_->end_last_forward();
    if (computes)
      runner_->finish(options_.model_part && !sums_ ? reduction.total_count()
                                                    : reduction.divisor(*runner_, part.global_size));
    else if (!sums_)
      check_divisor(reduction.total_count());
    if (shards_) shards_->play_last_backward();
    // Nothing to compute here, or nothing that reaches a parameter: the others wait all the same.
    if (reducer_->synchronize() && reducer_->passes() == reduced_before) reducer_->reduce_now();
  } catch (...) {
    abandon();
    throw;
  }
  if (reducer_->synchronize()) reducer_->drop_unused_gradients();
  finish_own(scale);
  runner_->after_reduction();
  return reduction.mean_loss();
}

// What is averaged has been divided by the number of ranks; these have not.
void Ranks::finish_own(double scale) const {
  const NoGradGuard no_grad;
  for (const Tensor& own : shared_.own_parameters)
    if (const Tensor grad = own.grad(); grad.defined()) grad.mul_(1.0 / scale);
}

std::optional<Tensor> Ranks::join_step(const data::Batch& own, std::uint64_t step, const LossFunction& loss) {
  check_not_lockstep(is_lockstep(), "join_step()");
  check_whole_model(options_.model_part != nullptr, "join_step()");
  group_->set_step(static_cast<std::int64_t>(step));
  const UnevenStep all = UnevenStep::meet(*group_, own.size());
  if (all.samples == 0) {
    share_buffers(std::exchange(buffers_root_, 0));
    return std::nullopt;
  }
  data::Batch part = own;
  part.global_size = all.samples;
  Tensor mean = this->step(part, step, loss);
  buffers_root_ = all.first;
  return mean;
}

void Ranks::share_buffers(int root) {
  if (!options_.broadcast_buffers || buffers_.empty() || sums_ || !reducer_->synchronize() || !module_.is_training())
    return;
  broadcast_coalesced(buffers_, *group_, root);
}

Tensor Ranks::forward(Tensor x) {
  Tensor out;
  const std::int64_t samples = joining_ ? x.size(0) : 0;
  const auto compute = [&] {
    out = module_(std::move(x));
    return out.requires_grad();
  };
  forward(compute, samples);
  return out;
}

void Ranks::forward(const std::function<bool()>& compute, std::optional<std::int64_t> samples) {
  check_whole_model(options_.model_part != nullptr, "the module's operator()");
  check_not_lockstep(is_lockstep() && GradMode::enabled() && module_.is_training(), "the module's operator()");
  LOCKSTEP_CHECK(!joining_ || samples,
                 "[DistributedDataParallel] join() weights each rank by the samples of `ddp(x)`, and a function was "
                 "called instead, whose samples are not known; use join_step()");
  const bool trains = !division_ || division_->trained > 0;  // else another model's step reads it
  if (!trains && StepHere::now()) StepHere::now()->check_even(*group_);
  if (GradMode::enabled() && !sums_) {
    frozen_.check();
    if (trains && module_.is_training() && reducer_->synchronize())
      group_->set_step(static_cast<std::int64_t>(reducer_->passes()));
    if (joining_) announce(*samples);
    share_buffers(joining_ ? join_step_.first : 0);
  }
  const auto run = [&] {
    if (!shards_) {
      compute();
      return;
    }
    shards_->begin_forward();
    try {
      const bool recorded = compute();
      shards_->end_forward(recorded && GradMode::enabled());
    } catch (...) {
      shards_->abandon();
      throw;
    }
  };
  if (GradMode::enabled() && module_.is_training())
    group_->attempt(run);
  else
    run();  // a look, which need not be all ranks'
}

void Ranks::announce(std::int64_t samples) {
  join_samples_ += samples;
  if (!reducer_->synchronize()) return;
  join_step_ = UnevenStep::meet(*group_, join_samples_);
  reducer_->set_weight(join_step_.weight(std::exchange(join_samples_, 0), group_->world_size()));
}

void Ranks::join(const std::function<void()>& loop, const std::function<void()>& keep_up) {
  check_not_lockstep(is_lockstep(), "join()");
  LOCKSTEP_CHECK(
      !division_,
      "[DistributedDataParallel] join() is for whole gradients, which zero = {} does not keep; use join_step()",
      options_.zero);
  LOCKSTEP_CHECK(!joining_, "[DistributedDataParallel] join() was called inside join()");
  if (const std::string layer = first_sync_batch_norm(module_); !layer.empty())
    throw Error(fmt::format(
        "[DistributedDataParallel] join() cannot be used with synchronised batch norm (layer '{}'), which ranks that "
        "have run out would have to compute too; use join_step()",
        layer));
  joining_ = true;
  join_samples_ = 0;
  join_step_ = {};
  try {
    loop();
    follow(keep_up);
  } catch (...) {
    reducer_->set_weight(1.0);
    joining_ = false;
    throw;
  }
  reducer_->set_weight(1.0);
  joining_ = false;
}

// What a rank does that has run out, until all have.
void Ranks::follow(const std::function<void()>& keep_up) {
  reducer_->set_weight(0.0);
  for (;;) {
    const UnevenStep step = UnevenStep::meet(*group_, std::nullopt);
    if (step.ranks == 0) break;
    join_step_ = step;
    module_.zero_grad(/*set_to_none=*/false);
    share_buffers(step.first);
    reducer_->reduce_now();
    if (keep_up) keep_up();
  }
  if (join_step_.ranks == 0) return;  // nobody ever had a sample
  broadcast_coalesced(shared_.tensors(), *group_, join_step_.first);
}

std::string Ranks::capture_obstacle() const {
  if (options_.model_part) return "the stages of a pipeline send each other what they compute, through the host";
  if (sums_) return "lockstep mode adds up on the host what the shards count";
  if (division_) return "gradients are divided over ranks, which waits on the host";
  if (!shared_.own_parameters.empty()) return "the gradients of ignored_modules are made anew in each step";
  if (options_.hook && !options_.hook->is_replayable())
    return fmt::format("the communication hook '{}' does not do the same in every step", options_.hook->name());
  if (const std::string layer = first_sync_batch_norm(module_); !layer.empty())
    return fmt::format("synchronised batch norm (layer '{}') combines its statistics on the host", layer);
  return {};
}

}  // namespace lockstep::distributed
