#include "lockstep/distributed/parallel/reduction/reducer.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/failure/flight_recorder.h"
#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"
#include "lockstep/distributed/parallel/reduction/unused_warning.h"

namespace lockstep::distributed {

Reducer::Reducer(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group, ReducerOptions options)
    : group_(std::move(group)), hook_(std::move(options.hook)), static_graph_(options.static_graph) {
  LOCKSTEP_CHECK(group_, "[Reducer] the process group is null");
  std::vector<BucketItem> items;
  for (nn::NamedTensor& parameter : parameters) {
    const Tensor& tensor = parameter.tensor;
    LOCKSTEP_CHECK(tensor.defined() && tensor.is_leaf() && tensor.requires_grad(),
                   "[Reducer] parameter '{}' must be a leaf that requires gradients", parameter.name);
    items.push_back({tensor.nbytes(), tensor.dtype(), tensor.device()});
    Slot slot;
    slot.parameter = std::move(parameter);
    slots_.push_back(std::move(slot));
  }
  const auto assignment = assign_buckets(items, options.first_bucket_bytes, options.bucket_bytes);
  const auto slots = static_cast<std::int64_t>(slots_.size());
  for (const std::vector<std::size_t>& indices : assignment) {
    Bucket bucket;
    std::int64_t numel = 0;
    for (std::size_t index : indices) numel += slots_[index].parameter.tensor.numel();
    const Tensor& first = slots_[indices.front()].parameter.tensor;
    const bool last = buckets_.size() + 1 == assignment.size();
    bucket.flat = zeros({last ? numel + slots : numel}, options_of(first));
    if (last) use_ = bucket.flat.as_strided({slots}, {1}, numel);
    std::int64_t offset = 0;
    for (std::size_t index : indices) {
      Slot& slot = slots_[index];
      const Tensor& tensor = slot.parameter.tensor;
      slot.bucket = buckets_.size();
      slot.view = bucket.flat.as_strided(tensor.sizes(), contiguous_strides(tensor.sizes()), offset);
      offset += tensor.numel();
      bucket.described.gradients.push_back({slot.parameter.name, slot.view});
    }
    bucket.described.flat = bucket.flat.as_strided({numel}, {1}, 0);
    bucket.described.index = buckets_.size();
    bucket.slots = indices;
    std::vector<std::string> names;
    for (std::size_t index : indices) names.push_back(slots_[index].parameter.name);
    bucket.label = bucket_label(buckets_.size(), names);
    buckets_.push_back(std::move(bucket));
  }
  for (Bucket& bucket : buckets_) bucket.described.count = buckets_.size();
  trace_.launched_ns.assign(buckets_.size(), 0);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    slots_[i].hook =
        slots_[i].parameter.tensor.register_post_accumulate_grad_hook([this, i](const Tensor&) { on_gradient(i); });
}

Reducer::~Reducer() {
  for (Slot& slot : slots_) slot.parameter.tensor.remove_hook(slot.hook);
}

void Reducer::on_gradient(std::size_t index) {
  Slot& slot = slots_[index];
  LOCKSTEP_CHECK(!slot.absent,
                 "[DistributedDataParallel] static_graph promises that every step uses the same parameters, but '{}' "
                 "got a gradient now and none in the first step; leave out static_graph",
                 slot.parameter.name);
  slot.used = true;
  if (!synchronize_) return;
  if (!in_pass_) {
    begin_pass(/*computed=*/true);
    Engine::queue_callback([this] { finish_pass(); });
  }
  LOCKSTEP_CHECK(
      !slot.ready,
      "[DistributedDataParallel] parameter '{}' got two gradients in one backward pass, or the pass before was "
      "broken off by an exception; make a new DistributedDataParallel after an exception in backward()",
      slot.parameter.name);
  mark_ready(slot);
  trace_.last_gradient_ns = steady_now_ns();
  launch_ready_buckets();
}

void Reducer::begin_pass(bool computed) {
  in_pass_ = true;
  computed_ = computed;
  next_bucket_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.slots.size();
    bucket.work.reset();
  }
  for (Slot& slot : slots_) {
    slot.ready = false;
    slot.unused = false;
    slot.unused_everywhere = false;
    if (slot.absent) mark_ready(slot);
  }
  trace_.first_gradient_ns = trace_.last_gradient_ns = steady_now_ns();
  trace_.finished_ns = 0;
  trace_.launched_ns.assign(buckets_.size(), 0);
}

void Reducer::mark_ready(Slot& slot) {
  const Tensor& parameter = slot.parameter.tensor;
  const Tensor grad = parameter.grad();
  slot.had_none = !grad.defined();
  if (!grad.defined()) {
    fill_values(slot.view, 0.0);
    parameter.set_grad(slot.view);
  } else if (!grad.is_same(slot.view)) {
    copy_values(grad, slot.view);
    parameter.set_grad(slot.view);
  }
  slot.ready = true;
  --buckets_[slot.bucket].pending;
}

void Reducer::launch_ready_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    Bucket& bucket = buckets_[next_bucket_];
    trace_.launched_ns[next_bucket_] = steady_now_ns();
    if (weight_ != 1.0) {
      const NoGradGuard no_grad;
      bucket.described.flat.mul_(weight_);
    }
    const LabelScope label(bucket.label);
    const bool last = next_bucket_ + 1 == buckets_.size();
    if (last) note_use();
    if (hook_) {
      bucket.work = hook_->reduce(bucket.described, *group_);
      if (last && group_->world_size() > 1) use_work_ = group_->all_reduce(use_, ReduceOp::avg);
    } else if (group_->world_size() > 1)
      bucket.work = group_->all_reduce(bucket.flat, ReduceOp::avg);
    ++next_bucket_;
  }
}

// All buckets but the last have left, so what this rank uses is known. If it is everything, nothing is asked of the
// host: a pass on a device can be captured in a graph.
void Reducer::note_use() {
  uses_all_ = std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.used; });
  if (uses_all_) return fill_values(use_, 1.0);
  std::vector<double> used;
  for (const Slot& slot : slots_) used.push_back(slot.used ? 1.0 : 0.0);
  copy_values(tensor(used), use_);
}

void Reducer::spread_use() {
  if (slots_.empty()) return;
  // What this rank has used, somebody has.
  const std::vector<double> used = uses_all_ ? std::vector<double>(slots_.size(), 1.0) : use_.to_vector<double>();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.unused_everywhere = used[i] == 0.0;
    if (slot.unused_everywhere && slot.had_none) slot.parameter.tensor.set_grad({});
    slot.unused = !slot.used;
    slot.used = false;
    if (static_graph_ && computed_ && !learned_) slot.absent = slot.unused;
  }
  if (computed_) learned_ = true;
  const std::vector<std::string> unused = unused_everywhere();
  if (unused.empty() || std::exchange(warned_, true) || group_->rank() != 0) return;
  warn_of_unused_parameters("DistributedDataParallel", unused, slots_.size(), passes_);
}

void Reducer::finish_pass() {
  for (Slot& slot : slots_)
    if (!slot.ready) mark_ready(slot);
  launch_ready_buckets();
  for (Bucket& bucket : buckets_) {
    const LabelScope label(bucket.label);
    if (auto* more = dynamic_cast<ContinuedWork*>(bucket.work.get())) more->advance();
  }
  for (Bucket& bucket : buckets_) {
    if (!bucket.work) continue;
    bucket.work->wait();
    bucket.work.reset();
    bucket.flat.storage()->bump_version();
  }
  if (use_work_) std::exchange(use_work_, nullptr)->wait();
  trace_.finished_ns = steady_now_ns();
  in_pass_ = false;
  spread_use();
  ++passes_;
}

void Reducer::zero_gradients() {
  for (const Bucket& bucket : buckets_) {
    const auto is_view = [&](std::size_t index) {
      const Tensor grad = slots_[index].parameter.tensor.grad();
      return grad.defined() && grad.is_same(slots_[index].view);
    };
    if (std::all_of(bucket.slots.begin(), bucket.slots.end(), is_view)) {
      fill_values(bucket.flat, 0.0);
      continue;
    }
    for (const std::size_t index : bucket.slots)
      if (const Tensor grad = slots_[index].parameter.tensor.grad(); grad.defined()) fill_values(grad, 0.0);
  }
}

void Reducer::reduce_now() {
  LOCKSTEP_CHECK(!in_pass_, "[Reducer] reduce_now() was called while a backward pass is being reduced");
  begin_pass(/*computed=*/false);
  finish_pass();
}

void Reducer::abandon_pass() {
  in_pass_ = false;
  for (Bucket& bucket : buckets_) bucket.work.reset();
  use_work_.reset();
}

std::vector<std::string> Reducer::unused_parameters() const {
  std::vector<std::string> names;
  for (const Slot& slot : slots_)
    if (slot.unused) names.push_back(slot.parameter.name);
  return names;
}

std::vector<std::string> Reducer::unused_everywhere() const {
  std::vector<std::string> names;
  for (const Slot& slot : slots_)
    if (slot.unused_everywhere) names.push_back(slot.parameter.name);
  return names;
}

void Reducer::drop_unused_gradients() {
  for (const Slot& slot : slots_)
    if (slot.unused_everywhere) slot.parameter.tensor.set_grad({});
}

}  // namespace lockstep::distributed
