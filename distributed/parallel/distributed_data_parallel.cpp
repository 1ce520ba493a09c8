#include "lockstep/distributed/parallel/distributed_data_parallel.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/data/partition.h"
#include "lockstep/distributed/parallel/lockstep_fingerprint.h"
#include "lockstep/distributed/parallel/lockstep_step.h"
#include "lockstep/distributed/parallel/share_runner.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "lockstep/distributed/parallel/workers/broadcast_coalesced.h"
#include "lockstep/distributed/parallel/workers/module_agreement.h"

namespace lockstep::distributed {
namespace {

// [sum of losses, their count], float64, without waiting for the device.
Tensor step_totals(const SlicedLoss& sliced, Device device) {
  if (device.is_cpu()) return tensor({sliced.sum(), sliced.count()});
  Tensor totals = full({2}, sliced.count(), {.dtype = kFloat64, .device = device});
  const Tensor sum = totals.as_strided({1}, {1}, 0);
  if (sliced.device_sum().defined())
    copy_values(sliced.device_sum(), sum);
  else
    fill_values(sum, 0.0);
  return totals;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& module, ProcessGroupPtr group,
                                                 DistributedDataParallelOptions options)
    : module_(module), group_(std::move(group)), options_(options), buffers_(module.buffers()) {
  LOCKSTEP_CHECK(group_, "[DistributedDataParallel] the process group is null");
  check_accumulate(options_.accumulate, options_.logical_shards, "DistributedDataParallel");
  LOCKSTEP_CHECK(
      !options_.hook || options_.logical_shards == 0,
      "[DistributedDataParallel] the communication hook '{}' cannot be used in lockstep mode, whose bits come "
      "from one fixed order of additions; leave out the hook or logical_shards",
      options_.hook->name());
  check_module_agreement(module_, *group_);
  if (options_.logical_shards != 0) {
    check_shards(options_.logical_shards, group_->world_size(), "DistributedDataParallel");
    check_fingerprint_agreement(lockstep_fingerprint(options_.logical_shards, module_.device()), *group_);
  }
  std::vector<Tensor> state = module_.parameters();
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  broadcast_coalesced(state, *group_);

  const ReducerOptions buckets{.first_bucket_bytes = options_.first_bucket_bytes,
                               .bucket_bytes = options_.bucket_bytes,
                               .hook = options_.hook,
                               .static_graph = options_.static_graph};
  if (options_.logical_shards != 0) {
    lockstep_ = make_group_lockstep_step(module_, group_, options_.logical_shards, buckets);
    return;
  }
  std::vector<nn::NamedTensor> trained;
  for (nn::NamedTensor& parameter : module_.named_parameters())
    if (parameter.tensor.requires_grad()) trained.push_back(std::move(parameter));
  LOCKSTEP_CHECK(!trained.empty(), "[DistributedDataParallel] {} has no parameter that requires gradients",
                 module_.type_name());
  reducer_ = std::make_unique<Reducer>(std::move(trained), group_, buckets);
}

DistributedDataParallel::~DistributedDataParallel() = default;
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;

DistributedDataParallel::DistributedDataParallel(nn::Module& module, const Job& job,
                                                 DistributedDataParallelOptions options)
    : DistributedDataParallel(module, job.process_group(), options) {}

void DistributedDataParallel::share_buffers(int root) {
  if (!options_.broadcast_buffers || buffers_.empty() || !reducer_ || !reducer_->synchronize() ||
      !module_.is_training())
    return;
  broadcast_coalesced(buffers_, *group_, root);
}

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() {
  LOCKSTEP_CHECK(reducer_,
                 "[DistributedDataParallel] no_sync() is not for lockstep mode, where step() accumulates over "
                 "the logical shards; raise the batch size and the number of shards instead");
  return NoSync(*reducer_);
}

const ReducerTrace& DistributedDataParallel::trace() const {
  return lockstep_ ? *lockstep_->trace() : reducer_->trace();
}

std::vector<std::string> DistributedDataParallel::unused_parameters() const {
  return reducer_ ? reducer_->unused_parameters() : std::vector<std::string>();
}

std::vector<std::string> DistributedDataParallel::unused_everywhere() const {
  return reducer_ ? reducer_->unused_everywhere() : lockstep_->unused_everywhere();
}

Tensor DistributedDataParallel::operator()(Tensor x) {
  LOCKSTEP_CHECK(!lockstep_ || !GradMode::enabled() || !module_.is_training(),
                 "[DistributedDataParallel] in lockstep mode a graph can only be recorded by step(), which computes "
                 "the logical shards one by one; call step(), or module().forward() under NoGradGuard");
  if (GradMode::enabled()) {
    if (module_.is_training() && reducer_ && reducer_->synchronize())
      group_->set_step(static_cast<std::int64_t>(reducer_->passes()));
    if (joining_) announce(x.size(0));
    share_buffers(joining_ ? join_step_.first : 0);
  }
  return module_.forward(std::move(x));
}

void DistributedDataParallel::announce(std::int64_t samples) {
  join_samples_ += samples;
  if (!reducer_->synchronize()) return;
  join_step_ = UnevenStep::meet(*group_, module_.device(), join_samples_);
  reducer_->set_weight(join_step_.weight(std::exchange(join_samples_, 0), group_->world_size()));
}

void DistributedDataParallel::join(const std::function<void()>& loop, const std::function<void()>& keep_up) {
  LOCKSTEP_CHECK(!lockstep_,
                 "[DistributedDataParallel] join() is not for lockstep mode, whose logical shards are those of one "
                 "global batch; give step() batches that all ranks know, or leave out logical_shards");
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
void DistributedDataParallel::follow(const std::function<void()>& keep_up) {
  reducer_->set_weight(0.0);
  for (;;) {
    const UnevenStep step = UnevenStep::meet(*group_, module_.device(), std::nullopt);
    if (step.ranks == 0) break;
    join_step_ = step;
    module_.zero_grad();
    share_buffers(step.first);
    reducer_->reduce_now();
    if (keep_up) keep_up();
  }
  if (join_step_.ranks == 0) return;  // nobody ever had a sample
  std::vector<Tensor> state = module_.parameters();
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  broadcast_coalesced(state, *group_, join_step_.first);
}

double DistributedDataParallel::step(const data::Batch& batch, const LossFunction& loss) {
  const std::uint64_t count = steps_++;
  const std::uint64_t step = guarded_random_step().value_or(count);
  group_->set_step(static_cast<std::int64_t>(step));
  if (!lockstep_) return mean_of(plain_step(part_of(batch), step, loss));
  return (*lockstep_)(batch, step, [&](nn::Module&, const data::Batch& shard) { return loss(shard); });
}

std::optional<double> DistributedDataParallel::join_step(const data::Batch& own, const LossFunction& loss) {
  LOCKSTEP_CHECK(
      !lockstep_,
      "[DistributedDataParallel] join_step() is not for lockstep mode, whose logical shards are those of one "
      "global batch; give step() batches that all ranks know, or leave out logical_shards");
  const std::uint64_t step = guarded_random_step().value_or(steps_);
  group_->set_step(static_cast<std::int64_t>(step));
  const UnevenStep all = UnevenStep::meet(*group_, module_.device(), own.size());
  if (all.samples == 0) {
    share_buffers(std::exchange(buffers_root_, 0));
    return std::nullopt;
  }
  data::Batch part = own;
  part.global_size = all.samples;
  ++steps_;
  const double mean = mean_of(plain_step(part, step, loss));
  buffers_root_ = all.first;
  return mean;
}

Tensor DistributedDataParallel::enqueue_step(const data::Batch& batch, const LossFunction& loss) {
  LOCKSTEP_CHECK(!lockstep_,
                 "[DistributedDataParallel] enqueue_step() is not for lockstep mode, in which the host adds up what "
                 "the shards count; call step()");
  const std::uint64_t count = steps_++;
  const std::uint64_t step = guarded_random_step().value_or(count);
  group_->set_step(static_cast<std::int64_t>(step));
  const Tensor totals = plain_step(part_of(batch), step, loss);
  const NoGradGuard no_grad;
  return totals.select(0, 0) / totals.select(0, 1);
}

std::string DistributedDataParallel::capture_obstacle() const {
  if (options_.hook && !options_.hook->is_replayable())
    return fmt::format("the communication hook '{}' does not do the same in every step", options_.hook->name());
  if (const std::string layer = first_sync_batch_norm(module_); !layer.empty())
    return fmt::format("synchronised batch norm (layer '{}') combines its statistics on the host", layer);
  return {};
}

void DistributedDataParallel::abandon_step() {
  if (reducer_) reducer_->abandon_pass();
}

// This rank's part, of the global batch or as a loader cut it.
data::Batch DistributedDataParallel::part_of(const data::Batch& batch) const {
  data::Batch part = batch;
  if (part.global_size == 0) part.global_size = batch.size();
  LOCKSTEP_CHECK(part.global_size > 0, "[DistributedDataParallel::step] the global batch is empty");
  if (group_->world_size() > 1 && part.global_size == batch.size()) {
    const data::Range range = data::partition(batch.size(), group_->world_size(), group_->rank());
    part.x = rows(batch.x, range.begin, range.size());
    part.y = rows(batch.y, range.begin, range.size());
  }
  return part;
}

Tensor DistributedDataParallel::plain_step(const data::Batch& part, std::uint64_t step, const LossFunction& loss) {
  const int world = group_->world_size();
  reducer_->zero_gradients();
  share_buffers(std::exchange(buffers_root_, 0));

  // Ranks draw as different shards of the step, so that dropout differs between them.
  const RandomKeyGuard key(step, static_cast<std::uint32_t>(group_->rank()));
  SlicedLoss sliced(module_, part,
                    {.slices = options_.accumulate,
                     .scale = static_cast<double>(world),  // the reducer's average divides by it
                     .empty_slices = !first_sync_batch_norm(module_).empty(),
                     .step = "DistributedDataParallel::step"});
  if (options_.accumulate > 1) {
    const NoSync accumulating(*reducer_);
    sliced.begin(loss);
  } else {
    sliced.begin(loss);
  }
  // Sum of losses and what to divide it by, over all ranks; they travel while the last backward computes.
  const Tensor totals = step_totals(sliced, module_.device());
  static const OperationLabel totals_label("loss and count of the step");
  const WorkPtr summed = [&] {
    const LabelScope label(totals_label);
    return world > 1 ? group_->all_reduce(totals) : nullptr;
  }();
  const std::uint64_t reduced_before = reducer_->passes();
  if (sliced.pending()) {
    double divisor = static_cast<double>(part.global_size);
    if (sliced.counted()) {
      if (summed) summed->wait();
      divisor = totals.to_vector<double>()[1];
    }
    sliced.finish(divisor);
  }
  // Nothing to compute here, or nothing that reaches a parameter: the others wait all the same.
  if (reducer_->synchronize() && reducer_->passes() == reduced_before) reducer_->reduce_now();
  if (reducer_->synchronize()) reducer_->drop_unused_gradients();
  if (summed) summed->wait();
  summed_ = summed;
  return totals;
}

double DistributedDataParallel::mean_of(const Tensor& totals) {
  const auto all = totals.to_vector<double>();
  if (summed_) summed_->wait();  // on a device, what was read counts only if nothing has failed until here
  return all[0] / all[1];
}

}  // namespace lockstep::distributed
