#include "lockstep/distributed/parallel/share_runner.h"

#include <utility>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/nn/deferred_statistics.h"

namespace lockstep::distributed {
namespace {

data::Batch moved(data::Batch batch, Device device) {
  if (batch.x.defined()) batch.x = move_values(batch.x, device);
  if (batch.y.defined()) batch.y = move_values(batch.y, device);
  return batch;
}

// So that neither values' places in memory nor later writes to the batch show in a shard.
data::Batch copy_of(const data::Batch& batch, Device device) {
  const auto copy = [&](const Tensor& tensor) {
    return device == tensor.device() ? copy_contiguous(tensor) : move_values(tensor, device);
  };
  return {copy(batch.x), copy(batch.y), batch.global_size};
}

}  // namespace

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
  const std::vector<Share> shares = sums_ ? shards_of_part(part.global_size, sums_->shards(), sums_->mine())
                                          : slices_of_part(part.size(), slices_, empty_slices);
  if (sums_) sums_->begin();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const data::Batch samples = rows_of(here, shares[i].samples);
    const LossValue value =
        sums_ ? forward(copy_of(samples, device), step, shares[i].index, loss) : loss(module_, samples);
    check_loss(value);
    const double factor = value.sum_factor(samples.size());
    // The mean over no samples is NaN.
    if (!sums_ && factor != 0.0) add_to_sum(value.value(), factor);
    count_ += value.count_of(samples.size());
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

LossValue ShareRunner::forward(const data::Batch& samples, std::uint64_t step, std::int64_t shard,
                               const LossFunction& loss) {
  const RandomKeyGuard key(step, static_cast<std::uint32_t>(shard));
  nn::DeferredStatistics statistics;
  LossValue value = loss(module_, samples);
  check_loss(value);
  sums_->add_totals(shard, value.value().item<double>() * value.sum_factor(samples.size()),
                    value.count_of(samples.size()), statistics);
  return value;
}

void ShareRunner::add_to_sum(const Tensor& value, double factor) {
  if (value.device().is_cpu()) {
    if (!sum_.defined()) sum_ = zeros({1}, {.dtype = kFloat64});
    *sum_.data<double>() += value.item<double>() * factor;
    return;
  }
  const NoGradGuard no_grad;
  const Tensor term = cast_values(value.detach(), kFloat64).reshape({1}) * factor;
  sum_ = sum_.defined() ? sum_ + term : term;
}

void ShareRunner::finish(double divisor) {
  LOCKSTEP_CHECK(divisor > 0.0, "[TrainingStep] the losses of this batch count 0; expected more, to divide by");
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
  ++passes_;
}

}  // namespace lockstep::distributed
