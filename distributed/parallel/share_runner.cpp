#include "lockstep/distributed/parallel/share_runner.h"

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/nn/deferred_statistics.h"
#include "lockstep/nn/unregistered.h"

namespace lockstep::distributed {
namespace {

data::Batch moved(const data::Batch& batch, Device device) {
  return batch.map([&](const Tensor& tensor) { return move_values(tensor, device); });
}

// So that neither values' places in memory nor later writes to the batch show in a shard.
data::Batch copy_of(const data::Batch& batch, Device device) {
  return batch.map([&](const Tensor& tensor) {
    return device == tensor.device() ? copy_contiguous(tensor) : move_values(tensor, device);
  });
}

// A logical shard's forward pass has its own random key and keeps its batch statistics apart.
struct ShardForward {
  ShardForward(std::uint64_t step, std::int64_t shard) : key(step, static_cast<std::uint32_t>(shard)) {}
  const RandomKeyGuard key;
  nn::DeferredStatistics statistics;
};

}  // namespace

std::vector<Share> ShareRunner::shares_of(const data::Batch& part, bool empty_slices) const {
  return sums_ ? shards_of_part(part.global_size, sums_->shards(), sums_->mine())
               : slices_of_part(part.size(), slices_, empty_slices);
}

std::int64_t ShareRunner::passes_of(const data::Batch& part, bool empty_slices) const {
  return static_cast<std::int64_t>(shares_of(part, empty_slices).size());
}

void ShareRunner::begin(const data::Batch& part, std::uint64_t step, const LossFunction& loss, double scale,
                        bool empty_slices) {
  scale_ = scale;
  assumed_ = sums_ ? 1.0 : static_cast<double>(part.global_size);
  passes_ = 0;
  sum_ = {};
  count_ = 0.0;
  counted_ = false;
  last_ = {};
  const Device device = module_.device();
  const data::Batch here = sums_ ? part : moved(part, device);
  const std::vector<Share> shares = shares_of(part, empty_slices);
  if (sums_) sums_->begin();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    data::Batch samples = rows_of(here, shares[i].samples);
    std::optional<ShardForward> shard;
    if (sums_) {
      samples = copy_of(samples, device);
      shard.emplace(step, shares[i].index);
    }
    if (shards_) shards_->begin_pass();
    const std::uint64_t began = Node::take_sequence();
    const LossValue value = loss(module_, samples);
    check_loss(value);
    if (std::exchange(looks_, false)) {
      std::vector<Tensor> inputs;
      samples.for_each([&](const char*, const Tensor& tensor) { inputs.push_back(tensor); });
      nn::detail::warn_of_unregistered({value.value()}, inputs, began, module_);
    }
    const double factor = value.sum_factor(samples.size()), count = value.count_of(samples.size());
    if (shard) {
      sums_->add_totals(shares[i].index, value.value().item<double>() * factor, count, shard->statistics);
      shard.reset();
    } else if (factor != 0.0) {  // the mean over no samples is NaN
      add_to_sum(value.value(), factor);
    }
    count_ += count;
    counted_ = counted_ || value.count();
    if (i + 1 == shares.size()) {
      last_ = value.value();
      last_factor_ = factor;
    } else {
      backward(value.value(), factor, assumed_);
      if (sums_) sums_->keep(shares[i].index);
    }
  }
  if (sums_) sums_->close(shares.empty() ? -1 : shares.back().index);
}

void ShareRunner::add_to_sum(const Tensor& value, double factor) {
  if (value.device().is_cpu()) {
    if (!sum_.defined()) sum_ = zeros({}, {.dtype = kFloat64});
    *sum_.data<double>() += value.item<double>() * factor;
    return;
  }
  const NoGradGuard no_grad;
  const Tensor term = cast_values(value.detach(), kFloat64).reshape({}) * factor;
  sum_ = sum_.defined() ? sum_ + term : term;
}

void ShareRunner::finish(double divisor) {
  check_divisor(divisor);
  if (passes_ > 0 && divisor != assumed_) {
    const NoGradGuard no_grad;
    for (const Tensor& parameter : module_.parameters())
      if (const Tensor grad = parameter.grad(); grad.defined()) grad.mul_(assumed_ / divisor);
  }
  const Tensor value = std::exchange(last_, {});
  backward(value, last_factor_, divisor);
}

void ShareRunner::backward(const Tensor& value, double factor, double divisor) {
  const Tensor seed = full(value.sizes(), factor / divisor * scale_, options_of(value));
  Engine::backward({&value, 1}, {&seed, 1});
  if (shards_) shards_->end_pass();
  ++passes_;
}

}  // namespace lockstep::distributed
