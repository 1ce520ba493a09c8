#include "distributed/parallel/distributed_data_parallel.h"

#include <utility>

#include "autograd/engine.h"
#include "autograd/grad_mode.h"
#include "core/check.h"
#include "core/copy.h"
#include "core/factories.h"
#include "core/random.h"
#include "data/partition.h"
#include "distributed/parallel/broadcast_coalesced.h"
#include "distributed/parallel/module_agreement.h"

namespace lockstep::distributed {

DistributedDataParallel::DistributedDataParallel(nn::Module& module, ProcessGroupPtr group,
                                                 DistributedDataParallelOptions options)
    : module_(module), group_(std::move(group)), options_(options), buffers_(module.buffers()) {
  LOCKSTEP_CHECK(group_, "[DistributedDataParallel] the process group is null");
  check_module_agreement(module_, *group_);
  std::vector<Tensor> state = module_.parameters();
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  broadcast_coalesced(state, *group_);

  std::vector<nn::NamedTensor> trained;
  for (nn::NamedTensor& parameter : module_.named_parameters())
    if (parameter.tensor.requires_grad()) trained.push_back(std::move(parameter));
  LOCKSTEP_CHECK(!trained.empty(), "[DistributedDataParallel] {} has no parameter that requires gradients",
                 module_.type_name());
  reducer_ = std::make_unique<Reducer>(
      std::move(trained), group_,
      ReducerOptions{.first_bucket_bytes = options_.first_bucket_bytes, .bucket_bytes = options_.bucket_bytes});
}

DistributedDataParallel::DistributedDataParallel(nn::Module& module, const Job& job,
                                                 DistributedDataParallelOptions options)
    : DistributedDataParallel(module, job.process_group(), options) {}

void DistributedDataParallel::share_buffers() {
  if (!options_.broadcast_buffers || buffers_.empty() || !reducer_->synchronize() || !module_.is_training()) return;
  broadcast_coalesced(buffers_, *group_);
}

Tensor DistributedDataParallel::operator()(Tensor x) {
  if (GradMode::enabled()) share_buffers();
  return module_.forward(std::move(x));
}

double DistributedDataParallel::step(const data::Batch& batch, const LossFunction& loss) {
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

  // Each rank's mean counts by its share of the samples; the reducer's average divides by the world size.
  const double share = static_cast<double>(part.size()) / static_cast<double>(part.global_size);
  const Tensor total = zeros({1}, {.dtype = kFloat64, .device = module_.device()});
  Tensor value;
  // Ranks draw as different shards of the step, so that dropout differs between them.
  const std::uint64_t count = steps_++;
  const RandomKeyGuard key(guarded_random_step().value_or(count), static_cast<std::uint32_t>(group_->rank()));
  if (part.size() > 0) {
    value = loss(part);
    LOCKSTEP_CHECK(value.defined() && value.numel() == 1,
                   "[DistributedDataParallel::step] the loss function must return the mean loss as one element");
    fill_values(total, value.item<double>() * share);
  }
  // The sum of the losses travels while backward computes.
  const WorkPtr summed = world > 1 ? group_->all_reduce(total) : nullptr;
  if (part.size() > 0) {
    const Tensor seed = full(value.sizes(), share * world, options_of(value));
    Engine::backward({&value, 1}, {&seed, 1});
  } else {
    reducer_->reduce_now();
  }
  if (summed) summed->wait();
  return total.item<double>();
}

}  // namespace lockstep::distributed
