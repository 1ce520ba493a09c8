#include "distributed/parallel/distributed_data_parallel.h"

#include <utility>

#include "autograd/grad_mode.h"
#include "core/check.h"
#include "core/copy.h"
#include "core/factories.h"
#include "core/random.h"
#include "data/partition.h"
#include "distributed/parallel/broadcast_coalesced.h"
#include "distributed/parallel/lockstep_fingerprint.h"
#include "distributed/parallel/module_agreement.h"
#include "distributed/parallel/sliced_loss.h"
#include "distributed/parallel/sync_batch_norm.h"

namespace lockstep::distributed {

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
    check_fingerprint_agreement(lockstep_fingerprint(options_.logical_shards), *group_);
  }
  std::vector<Tensor> state = module_.parameters();
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  broadcast_coalesced(state, *group_);

  const ReducerOptions buckets{
      .first_bucket_bytes = options_.first_bucket_bytes, .bucket_bytes = options_.bucket_bytes, .hook = options_.hook};
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

DistributedDataParallel::DistributedDataParallel(nn::Module& module, const Job& job,
                                                 DistributedDataParallelOptions options)
    : DistributedDataParallel(module, job.process_group(), options) {}

void DistributedDataParallel::share_buffers() {
  if (!options_.broadcast_buffers || buffers_.empty() || !reducer_ || !reducer_->synchronize() ||
      !module_.is_training())
    return;
  broadcast_coalesced(buffers_, *group_);
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

Tensor DistributedDataParallel::operator()(Tensor x) {
  LOCKSTEP_CHECK(!lockstep_ || !GradMode::enabled() || !module_.is_training(),
                 "[DistributedDataParallel] in lockstep mode a graph can only be recorded by step(), which computes "
                 "the logical shards one by one; call step(), or module().forward() under NoGradGuard");
  if (GradMode::enabled()) share_buffers();
  return module_.forward(std::move(x));
}

double DistributedDataParallel::step(const data::Batch& batch, const LossFunction& loss) {
  const std::uint64_t count = steps_++;
  const std::uint64_t step = guarded_random_step().value_or(count);
  if (!lockstep_) return plain_step(batch, step, loss);
  return (*lockstep_)(batch, step, [&](nn::Module&, const data::Batch& shard) { return loss(shard); });
}

double DistributedDataParallel::plain_step(const data::Batch& batch, std::uint64_t step, const LossFunction& loss) {
  const int world = group_->world_size();
  data::Batch part = batch;
  if (part.global_size == 0) part.global_size = batch.size();
  LOCKSTEP_CHECK(part.global_size > 0, "[DistributedDataParallel::step] the global batch is empty");
  if (world > 1 && part.global_size == batch.size()) {
    const data::Range range = data::partition(batch.size(), world, group_->rank());
    part.x = rows(batch.x, range.begin, range.size());
    part.y = rows(batch.y, range.begin, range.size());
  }
  module_.zero_grad();
  share_buffers();

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
  const Tensor totals = move_values(tensor({sliced.sum(), sliced.count()}), module_.device());
  const WorkPtr summed = world > 1 ? group_->all_reduce(totals) : nullptr;
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
  if (summed) summed->wait();
  const auto all = totals.to_vector<double>();
  return all[0] / all[1];
}

}  // namespace lockstep::distributed
