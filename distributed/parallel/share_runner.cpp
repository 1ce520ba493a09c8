#include "lockstep/distributed/parallel/share_runner.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/partition.h"

namespace lockstep::distributed {

SlicedLoss::SlicedLoss(nn::Module& module, data::Batch part, Options options)
    : module_(module), part_(std::move(part)), options_(options) {
  const Device device = module_.device();
  if (part_.x.defined()) part_.x = move_values(part_.x, device);
  if (part_.y.defined()) part_.y = move_values(part_.y, device);
}

void SlicedLoss::begin(const LossFunction& loss) {
  const std::int64_t samples = part_.size();
  const std::int64_t slices = options_.empty_slices ? options_.slices : std::min(options_.slices, samples);
  for (std::int64_t i = 0; i < slices; ++i) {
    data::Batch slice = part_;
    if (slices > 1) {
      const data::Range range = data::partition(samples, slices, i);
      slice.x = rows(part_.x, range.begin, range.size());
      slice.y = rows(part_.y, range.begin, range.size());
    }
    const LossValue result = loss(slice);
    check_loss(result, options_.step);
    const double factor = result.sum_factor(slice.size());
    // The mean over no samples is NaN.
    if (factor != 0.0) add_to_sum(result.value(), factor);
    count_ += result.count_of(slice.size());
    counted_ = counted_ || result.count();
    if (i + 1 == slices) {
      last_ = result.value();
      last_factor_ = factor;
    } else {
      backward(result.value(), factor, static_cast<double>(part_.global_size));
    }
  }
}

void SlicedLoss::add_to_sum(const Tensor& value, double factor) {
  if (value.device().is_cpu()) {
    if (!sum_.defined()) sum_ = zeros({1}, {.dtype = kFloat64});
    *sum_.data<double>() += value.item<double>() * factor;
    return;
  }
  const NoGradGuard no_grad;
  const Tensor term = cast_values(value.detach(), kFloat64).reshape({1}) * factor;
  sum_ = sum_.defined() ? sum_ + term : term;
}

void SlicedLoss::finish(double divisor) {
  LOCKSTEP_CHECK(divisor > 0.0, "[{}] the losses of this batch count 0", options_.step);
  const double samples = static_cast<double>(part_.global_size);
  if (passes_ > 0 && divisor != samples) {
    const NoGradGuard no_grad;
    for (const Tensor& parameter : module_.parameters())
      if (const Tensor grad = parameter.grad(); grad.defined()) grad.mul_(samples / divisor);
  }
  const Tensor value = std::exchange(last_, {});
  backward(value, last_factor_, divisor);
}

void SlicedLoss::backward(const Tensor& value, double factor, double divisor) {
  const Tensor seed = full(value.sizes(), factor / divisor * options_.scale, options_of(value));
  Engine::backward({&value, 1}, {&seed, 1});
  ++passes_;
}

void check_accumulate(std::int64_t accumulate, std::int64_t logical_shards, const char* who) {
  LOCKSTEP_CHECK(accumulate >= 1, "[{}] accumulate is {}; expected at least 1 slice", who, accumulate);
  LOCKSTEP_CHECK(accumulate == 1 || logical_shards == 0,
                 "[{}] accumulate is {}, but lockstep mode accumulates over the logical shards by itself; leave it at "
                 "1 and raise logical_shards (now {}) for smaller slices",
                 who, accumulate, logical_shards);
}

}  // namespace lockstep::distributed
