#include "lockstep/distributed/parallel/reduction/reducer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/distributed/failure/flight_recorder.h"
#include "lockstep/distributed/failure/process_end.h"
#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"
#include "lockstep/distributed/parallel/reduction/unused_warning.h"

namespace lockstep::distributed {
namespace {

std::vector<std::vector<std::size_t>> buckets_of(const std::vector<nn::NamedTensor>& parameters,
                                                 const TrainingStepOptions& options) {
  std::vector<BucketItem> items;
  for (const auto& [name, tensor] : parameters) {
    LOCKSTEP_CHECK(tensor.defined() && tensor.is_leaf() && tensor.requires_grad(),
                   "[Reducer] parameter '{}' must be a leaf that requires gradients", name);
    items.push_back({tensor.nbytes(), tensor.dtype(), tensor.device()});
  }
  return assign_buckets(items, options.first_bucket_bytes, options.bucket_bytes);
}

Device device_of(const std::vector<nn::NamedTensor>& parameters) {
  return parameters.empty() ? Device() : parameters.front().tensor.device();
}

std::vector<Tensor> tensors_of(const std::vector<nn::NamedTensor>& parameters) {
  std::vector<Tensor> tensors;
  for (const nn::NamedTensor& each : parameters) tensors.push_back(each.tensor);
  return tensors;
}

}  // namespace

Reducer::Reducer(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group, const TrainingStepOptions& options)
    : Reducer(parameters, mean_reduction(group, device_of(parameters), options.hook), group, options,
              buckets_of(parameters, options)) {}

Reducer::Reducer(ShardSums& sums, ProcessGroupPtr group, const TrainingStepOptions& options)
    : Reducer(sums.parameters(), tree_reduction(group, device_of(sums.parameters()), sums), group, options,
              buckets_of(sums.parameters(), options)) {
  static_graph_ = false;
}

Reducer::Reducer(std::vector<nn::NamedTensor> parameters, std::unique_ptr<RankReduction> reduction,
                 ProcessGroupPtr group, const TrainingStepOptions& options,
                 const std::vector<std::vector<std::size_t>>& buckets)
    : group_(std::move(group)),
      reduction_(std::move(reduction)),
      parameters_(std::move(parameters)),
      held_(tensors_of(parameters_)),
      slots_(parameters_.size()),
      used_(parameters_.size(), false),
      static_graph_(options.static_graph) {
  LOCKSTEP_CHECK(group_, "[Reducer] the process group is null");
  for (std::size_t b = 0; b < buckets.size(); ++b) make_bucket(buckets[b], b, buckets.size());
  trace_.launched_ns.assign(buckets_.size(), 0);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    slots_[i].hook = detail::register_own_hook(parameters_[i].tensor, [this, i](const Tensor&) { on_gradient(i); });
}

Reducer::~Reducer() {
  for (std::size_t i = 0; i < slots_.size(); ++i) parameters_[i].tensor.remove_hook(slots_[i].hook);
}

/// Of a pass that a backward() has begun, until it ends: abandons it if the backward() does not come to its end.
class Reducer::PassOfBackward {
 public:
  explicit PassOfBackward(Reducer& reducer) : reducer_(&reducer) {}
  ~PassOfBackward() {
    if (!reducer_) return;
    reducer_->abandon_pass();
    try {
      reducer_->group_->remember_exception(unwinding_message());
    } catch (const std::bad_alloc&) {  // which was perhaps the exception
    }
  }
  PassOfBackward(const PassOfBackward&) = delete;
  PassOfBackward& operator=(const PassOfBackward&) = delete;
  void finish() {
    reducer_->finish_pass();
    reducer_ = nullptr;
  }

 private:
  Reducer* reducer_;
};

void Reducer::make_bucket(const std::vector<std::size_t>& slots, std::size_t index, std::size_t count) {
  Bucket bucket;
  bucket.slots = slots;
  bucket.described.index = index;
  bucket.described.count = count;
  std::int64_t elements = 0;
  std::vector<std::string> names;
  for (const std::size_t slot : slots) {
    slots_[slot].bucket = index;
    slots_[slot].place = bucket.offsets.size();
    bucket.offsets.push_back(elements);
    elements += packed_elements(parameters_[slot].tensor.numel(), parameters_[slot].tensor.dtype());
    names.push_back(parameters_[slot].name);
  }
  bucket.elements = elements;
  bucket.label = bucket_label(index, names);
  allocate(bucket);
  buckets_.push_back(std::move(bucket));
}

void Reducer::allocate(Bucket& bucket) {
  reduction_->allocate(bucket, bucket.elements, options_of(parameters_[bucket.slots.front()].tensor),
                       static_cast<std::int64_t>(parameters_.size()));
  bucket.described.gradients.clear();
  for (std::size_t i = 0; i < bucket.slots.size() && bucket.described.flat.defined(); ++i) {
    const auto& [name, tensor] = parameters_[bucket.slots[i]];
    bucket.described.gradients.push_back(
        {name,
         bucket.described.flat.as_strided(tensor.sizes(), contiguous_strides(tensor.sizes()), bucket.offsets[i])});
  }
}

void Reducer::on_gradient(std::size_t index) {
  Slot& slot = slots_[index];
  LOCKSTEP_CHECK(!slot.absent,
                 "[DistributedDataParallel] static_graph promises that every step uses the same parameters, but '{}' "
                 "got a gradient now and none in the first step; leave out static_graph",
                 parameters_[index].name);
  used_[index] = true;
  if (!*synchronize_) return;
  if (!in_pass_) {
    begin_pass(/*computed=*/true);
    Engine::queue_callback([pass = std::make_shared<PassOfBackward>(*this)] { pass->finish(); });
  }
  LOCKSTEP_CHECK(!slot.ready, "[DistributedDataParallel] parameter '{}' got two gradients in one backward pass",
                 parameters_[index].name);
  mark_ready(index);
  trace_.last_gradient_ns = steady_now_ns();
  launch_ready_buckets();
}

void Reducer::begin_pass(bool computed) {
  if (!reduction_->keeps_gradients()) check_hooks();
  in_pass_ = true;
  computed_ = computed;
  next_bucket_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.slots.size();
    bucket.work.reset();
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].ready = false;
    slots_[i].unused = false;
    slots_[i].unused_everywhere = false;
    if (slots_[i].absent) mark_ready(i);
  }
  trace_.first_gradient_ns = trace_.last_gradient_ns = steady_now_ns();
  trace_.finished_ns = 0;
  trace_.launched_ns.assign(buckets_.size(), 0);
}

void Reducer::mark_ready(std::size_t index) {
  Slot& slot = slots_[index];
  Bucket& bucket = buckets_[slot.bucket];
  slot.had_none = !parameters_[index].tensor.grad().defined();
  reduction_->collect(bucket, slot.place, parameters_[index].tensor);
  slot.ready = true;
  --bucket.pending;
}

void Reducer::launch_ready_buckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0; ++next_bucket_) {
    Bucket& bucket = buckets_[next_bucket_];
    trace_.launched_ns[next_bucket_] = steady_now_ns();
    if (weight_ != 1.0) {
      const NoGradGuard no_grad;
      bucket.described.flat.mul_(weight_);
    }
    const LabelScope label(bucket.label);
    bucket.work = reduction_->launch(bucket, used_);
  }
}

void Reducer::finish_pass() {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].ready) mark_ready(i);
  launch_ready_buckets();
  for (Bucket& bucket : buckets_) {
    const LabelScope label(bucket.label);
    if (auto* more = dynamic_cast<ContinuedWork*>(bucket.work.get())) more->advance();
  }
  for (Bucket& bucket : buckets_) {
    if (!bucket.work) continue;
    bucket.work->wait();
    bucket.work.reset();
    if (bucket.described.flat.defined()) bucket.described.flat.storage()->bump_version();
  }
  reduction_->finish();
  if (!slots_.empty()) settle_use();
  trace_.finished_ns = steady_now_ns();
  in_pass_ = false;
  ++passes_;
  run_held_hooks();
}

void Reducer::run_held_hooks() const {
  for (const Bucket& bucket : buckets_)
    for (const std::size_t slot : bucket.slots)
      if (!slots_[slot].unused_everywhere) held_.run(slot);
}

void Reducer::check_hooks() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    LOCKSTEP_CHECK(!held_.any(i),
                   "[TrainingStep] parameter '{}' has a hook of register_post_accumulate_grad_hook(), which is called "
                   "with the average over ranks; where gradients are divided over them (zero = 2 or 3) no rank has it. "
                   "Step the ZeroRedundancyOptimizer after backward(), or use register_hook(), which sees the gradient "
                   "of this rank",
                   parameters_[i].name);
}

void Reducer::settle_use() {
  const std::vector<bool> anywhere = reduction_->used_anywhere();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.unused_everywhere = !anywhere[i];
    if (slot.unused_everywhere && slot.had_none) parameters_[i].tensor.set_grad({});
    slot.unused = !used_[i];
    if (static_graph_ && computed_ && !learned_) slot.absent = slot.unused;
  }
  used_.assign(used_.size(), false);
  if (computed_) learned_ = true;
  const std::vector<std::string> unused = unused_everywhere();
  if (unused.empty() || std::exchange(warned_, true) || group_->rank() != 0) return;
  warn_of_unused_parameters(unused, parameters_, passes_);
}

void Reducer::clear_gradients() {
  used_.assign(used_.size(), false);
  reduction_->clear_gradients(buckets_, parameters_);
}

void Reducer::reduce_now() {
  LOCKSTEP_CHECK(!in_pass_ || early_, "[Reducer] reduce_now() was called while a backward pass is being reduced");
  if (!std::exchange(early_, false)) begin_pass(/*computed=*/false);
  finish_pass();
}

void Reducer::reduce_early(std::size_t first, std::size_t count) {
  LOCKSTEP_CHECK(!in_pass_ || early_, "[Reducer] reduce_early() was called while a backward pass is being reduced");
  if (!std::exchange(early_, true)) begin_pass(/*computed=*/false);
  for (std::size_t i = first; i < first + count; ++i)
    if (!slots_[i].ready) mark_ready(i);
  launch_ready_buckets();
}

void Reducer::abandon_pass() {
  in_pass_ = early_ = false;
  used_.assign(used_.size(), false);
  for (Bucket& bucket : buckets_) {
    const bool may_write = std::exchange(bucket.work, nullptr) != nullptr;  // until it is waited for
    if (!bucket.described.flat.defined()) {
      bucket.memory = {};
    } else if (may_write) {
      for (std::size_t i = 0; i < bucket.slots.size(); ++i) {
        const Tensor& parameter = parameters_[bucket.slots[i]].tensor;
        if (parameter.grad().defined() && parameter.grad().is_same(bucket.described.gradients[i].tensor))
          parameter.set_grad({});
      }
      allocate(bucket);
    }
  }
  reduction_->abandon();
}

std::vector<std::string> Reducer::names_of(bool Slot::*which) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].*which) names.push_back(parameters_[i].name);
  return names;
}

void Reducer::drop_unused_gradients() {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].unused_everywhere) parameters_[i].tensor.set_grad({});
}

NoSync::NoSync(Reducer& reducer) : synchronize_(reducer.synchronize_), previous_(*synchronize_) {
  *synchronize_ = false;
}

NoSync::~NoSync() {
  if (synchronize_) *synchronize_ = previous_;
}

}  // namespace lockstep::distributed
