#include "lockstep/distributed/parallel/reduction/shard_sums.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/data/partition.h"
#include "lockstep/nn/norm.h"

namespace lockstep::distributed {
namespace {

data::Range samples_of(std::int64_t size, std::int64_t shards, const ShardRange& range) {
  return {data::partition(size, shards, range.begin).begin, data::partition(size, shards, range.end - 1).end};
}

// A copy, so that neither values' places in memory nor later writes to the batch show in a shard.
Tensor rows_of_its_own(const Tensor& tensor, const data::Range& range, Device device) {
  const Tensor view = rows(tensor, range.begin, range.size());
  return device == tensor.device() ? copy_contiguous(view) : move_values(view, device);
}

void add_rows(std::vector<double>& left, const std::vector<double>& right) {
  for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
}

}  // namespace

data::Batch samples_of_shards(const data::Batch& global, std::int64_t shards, const ShardRange& mine) {
  const data::Range range = samples_of(global.size(), shards, mine);
  return {rows(global.x, range.begin, range.size()), rows(global.y, range.begin, range.size()), global.size()};
}

ShardRunner::ShardRunner(nn::Module& module, std::int64_t shards, ShardRange mine)
    : module_(module), shards_(shards), mine_(mine), layout_(module) {
  for (nn::NamedTensor& parameter : module_.named_parameters())
    if (parameter.tensor.requires_grad()) parameters_.push_back(std::move(parameter));
  LOCKSTEP_CHECK(!parameters_.empty(), "[lockstep] {} has no parameter that requires gradients", module_.type_name());
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    hooks_.push_back(parameters_[p].tensor.register_post_accumulate_grad_hook([this, p](const Tensor&) {
      if (observer_) report(p);
    }));
  buffers_ = module_.named_buffers();
  zeros_.resize(parameters_.size());
}

ShardRunner::~ShardRunner() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].tensor.remove_hook(hooks_[p]);
}

void ShardRunner::clear() {
  sums_.clear();
  total_sums_.clear();
  totals_.clear();
  last_gradients_.assign(parameters_.size(), {});
  reported_.assign(parameters_.size(), false);
  loss_ = {};
  last_ = -1;
  observer_ = nullptr;
}

void ShardRunner::run(const data::Batch& part, std::uint64_t step, const LossFunction& loss, const Observer& observer) {
  const data::Range samples = samples_of(part.global_size, shards_, mine_);
  LOCKSTEP_CHECK(
      part.size() == samples.size(),
      "[lockstep] this worker was given {} samples of a batch of {}; its shards {} to {} of {} hold {}; pass "
      "the global batch, or give the loader the number of logical shards",
      part.size(), part.global_size, mine_.begin, mine_.end - 1, shards_, samples.size());
  clear();
  used_.assign(parameters_.size(), false);
  for (const nn::NamedTensor& parameter : parameters_) parameter.tensor.set_grad({});
  const std::vector<std::uint32_t> versions = buffer_versions();
  const Device device = module_.device();
  // The larger shards come first, so those without samples are at the end.
  std::int64_t last = mine_.end - 1;
  while (last >= mine_.begin && data::partition(part.global_size, shards_, last).size() == 0) --last;

  for (std::int64_t index = mine_.begin; index <= last; ++index) {
    const data::Range range = data::partition(part.global_size, shards_, index);
    const data::Range local{range.begin - samples.begin, range.end - samples.begin};
    data::Batch shard;
    shard.x = rows_of_its_own(part.x, local, device);
    shard.y = rows_of_its_own(part.y, local, device);
    shard.global_size = part.global_size;
    run_shard(shard, step, index, loss);
    if (index == last) break;
    const Tensor seed = full(loss_.sizes(), seed_, options_of(loss_));
    Engine::backward({&loss_, 1}, {&seed, 1});
    loss_ = {};
    sums_.push({0, index}, take_gradients(), [](Gradients& left, const Gradients& right) {
      for (std::size_t p = 0; p < left.size(); ++p) add_values_(left[p], right[p]);
    });
  }
  check_buffers(versions);
  for (std::int64_t index = last + 1; index < mine_.end; ++index)
    total_sums_.push({0, index}, std::vector<double>(layout_.size(), 0.0), add_rows);
  for (const auto& entry : total_sums_.entries()) totals_.push_back(entry.value);
  observer.totals_ready();

  last_ = last >= mine_.begin ? last : -1;
  observer_ = &observer;
  try {
    if (last_ >= 0) {
      const Tensor seed = full(loss_.sizes(), seed_, options_of(loss_));
      Engine::backward({&loss_, 1}, {&seed, 1});
      loss_ = {};
    }
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      if (!reported_[p]) report(p);
  } catch (...) {
    clear();
    for (const nn::NamedTensor& parameter : parameters_) parameter.tensor.set_grad({});
    throw;
  }
  observer_ = nullptr;
}

void ShardRunner::run_shard(const data::Batch& shard, std::uint64_t step, std::int64_t index,
                            const LossFunction& loss) {
  const RandomKeyGuard key(step, static_cast<std::uint32_t>(index));
  nn::DeferredStatistics statistics;
  const LossValue value = loss(module_, shard);
  check_loss(value, "lockstep");
  loss_ = value.value();
  seed_ = value.sum_factor(shard.size());
  total_sums_.push({0, index}, layout_.row(loss_.item<double>() * seed_, value.count_of(shard.size()), statistics),
                   add_rows);
}

void ShardRunner::report(std::size_t parameter) {
  const Tensor& leaf = parameters_[parameter].tensor;
  last_gradients_[parameter] = leaf.grad();
  leaf.set_grad({});
  LOCKSTEP_CHECK(!reported_[parameter], "[lockstep] parameter '{}' got two gradients in one backward pass",
                 parameters_[parameter].name);
  reported_[parameter] = true;
  if (last_gradients_[parameter].defined()) used_[parameter] = true;
  observer_->gradient_ready(parameter);
}

ShardRunner::Gradients ShardRunner::take_gradients() {
  Gradients gradients;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& parameter = parameters_[p].tensor;
    const Tensor grad = parameter.grad();
    if (grad.defined()) used_[p] = true;
    gradients.push_back(grad.defined() ? grad : zeros_like(parameter.detach()));
    parameter.set_grad({});
  }
  return gradients;
}

const Tensor& ShardRunner::zeros_of(std::size_t parameter) {
  Tensor& zeros = zeros_[parameter];
  if (!zeros.defined()) zeros = zeros_like(parameters_[parameter].tensor.detach());
  return zeros;
}

ShardRunner::Parts ShardRunner::parts(std::size_t parameter) {
  Parts parts;
  const auto add = [&](const Tensor& tensor, const TreeNode& node) {
    parts.tensors.push_back(tensor.defined() ? tensor : zeros_of(parameter));
    parts.nodes.push_back(node);
  };
  for (const auto& entry : sums_.entries()) add(entry.value[parameter], entry.node);
  std::int64_t next = mine_.begin;
  if (last_ >= 0) {
    add(last_gradients_[parameter], {0, last_});
    next = last_ + 1;
  }
  for (; next < mine_.end; ++next) add({}, {0, next});
  return parts;
}

std::vector<std::uint32_t> ShardRunner::buffer_versions() const {
  std::vector<std::uint32_t> versions;
  for (const nn::NamedTensor& buffer : buffers_) versions.push_back(buffer.tensor.storage()->version());
  return versions;
}

void ShardRunner::check_buffers(const std::vector<std::uint32_t>& before) const {
  const std::vector<std::uint32_t> after = buffer_versions();
  for (std::size_t b = 0; b < buffers_.size(); ++b)
    LOCKSTEP_CHECK(before[b] == after[b],
                   "[lockstep] forward() changed the buffer '{}', whose value would then depend on the number of "
                   "workers; only batch norm's running statistics can be combined in lockstep mode",
                   buffers_[b].name);
}

}  // namespace lockstep::distributed
