#include "lockstep/nn/norm.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/batch_norm/batch_norm.h"
#include "lockstep/autograd/ops/group_norm/group_norm.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/deferred_statistics.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {

BatchNorm::BatchNorm(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options)
    : Module(parent, name),
      weight(this, "weight", options.affine ? ones({channels}) : Tensor()),
      bias(this, "bias", options.affine ? zeros({channels}) : Tensor()),
      running_mean(this, "running_mean", options.track_running_stats ? zeros({channels}) : Tensor()),
      running_var(this, "running_var", options.track_running_stats ? ones({channels}) : Tensor()),
      num_batches_tracked(this, "num_batches_tracked",
                          options.track_running_stats ? zeros({}, {.dtype = kInt64}) : Tensor()),
      options_(options) {}

Tensor BatchNorm::forward(Tensor x) {
  check_input(x);
  lockstep::BatchNormOptions call{.weight = weight, .bias = bias, .eps = options_.eps};
  call.training = is_training() || !running_mean.defined();
  if (!is_training()) return batch_norm(x, running_mean, running_var, call);
  DeferredStatistics* const deferred = DeferredStatistics::current();
  LOCKSTEP_CHECK(!deferred || !training_function_,
                 "[nn::BatchNorm] in lockstep mode a shard is normalised alone, and this layer over all processes; "
                 "leave out convert_sync_batch_norm() or logical_shards");
  if (StatisticsKept::active())
    return training_function_ ? training_function_(x, {}, {}, call) : batch_norm(x, {}, {}, call);
  if (deferred && running_mean.defined()) {
    ChannelStatistics statistics;
    call.statistics = &statistics;
    Tensor out = batch_norm(x, {}, {}, call);
    deferred->add(this, statistics);
    return out;
  }
  if (running_mean.defined()) call.momentum = momentum();
  if (!training_function_) {
    call.batches = num_batches_tracked;
    return batch_norm(x, running_mean, running_var, call);
  }
  Tensor out = training_function_(x, running_mean, running_var, call);
  if (running_mean.defined()) count_batch();
  return out;
}

// Of the batch that is being computed. Without a momentum of its own the layer needs the count on the host.
double BatchNorm::momentum() const {
  return options_.momentum ? *options_.momentum : 1.0 / (num_batches_tracked.item<double>() + 1.0);
}

// Where the buffer is: nothing waits for a device.
void BatchNorm::count_batch() {
  const NoGradGuard no_grad;
  num_batches_tracked.add_(1);
}

void BatchNorm::reset_running_stats() {
  if (!running_mean.defined()) return;
  init::zeros_(running_mean);
  init::ones_(running_var);
  fill_values(num_batches_tracked, 0);
}

void BatchNorm::track(const Tensor& mean, const Tensor& variance) {
  if (!running_mean.defined()) return;
  LOCKSTEP_CHECK(mean.sizes() == running_mean.sizes() && variance.sizes() == running_var.sizes(),
                 "[nn::BatchNorm] statistics {} and {} do not fit the running ones {}", to_string(mean.sizes()),
                 to_string(variance.sizes()), to_string(running_mean.sizes()));
  const double momentum = this->momentum();
  const auto blend = [&](const Tensor& running, const Tensor& fresh) {
    auto values = running.to_vector<double>();
    const auto updates = fresh.to_vector<double>();
    for (std::size_t c = 0; c < values.size(); ++c) values[c] = (1.0 - momentum) * values[c] + momentum * updates[c];
    copy_values(tensor(values), running);
    running.storage()->bump_version();
  };
  blend(running_mean, mean);
  blend(running_var, variance);
  count_batch();
}

BatchNorm1d::BatchNorm1d(std::int64_t channels, BatchNormOptions options) : BatchNorm(nullptr, {}, channels, options) {}
BatchNorm1d::BatchNorm1d(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options)
    : BatchNorm(parent, name, channels, options) {}

void BatchNorm1d::check_input(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() == 2 || x.dim() == 3, "[nn::BatchNorm1d] expected [n, c] or [n, c, length], found {}",
                 to_string(x.sizes()));
}

BatchNorm2d::BatchNorm2d(std::int64_t channels, BatchNormOptions options) : BatchNorm(nullptr, {}, channels, options) {}
BatchNorm2d::BatchNorm2d(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options)
    : BatchNorm(parent, name, channels, options) {}

void BatchNorm2d::check_input(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() == 4, "[nn::BatchNorm2d] expected [n, c, h, w], found {}", to_string(x.sizes()));
}

BatchNorm3d::BatchNorm3d(std::int64_t channels, BatchNormOptions options) : BatchNorm(nullptr, {}, channels, options) {}
BatchNorm3d::BatchNorm3d(Module* parent, std::string_view name, std::int64_t channels, BatchNormOptions options)
    : BatchNorm(parent, name, channels, options) {}

void BatchNorm3d::check_input(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() == 5, "[nn::BatchNorm3d] expected [n, c, d, h, w], found {}", to_string(x.sizes()));
}

LayerNorm::LayerNorm(Shape shape, LayerNormOptions options) : LayerNorm(nullptr, {}, shape, options) {}

LayerNorm::LayerNorm(Module* parent, std::string_view name, Shape shape, LayerNormOptions options)
    : Module(parent, name),
      weight(this, "weight", options.affine ? ones(shape) : Tensor()),
      bias(this, "bias", options.affine && options.bias ? zeros(shape) : Tensor()),
      shape_(shape),
      eps_(options.eps) {}

Tensor LayerNorm::forward(Tensor x) {
  const auto norm = [this](const Tensor& input, const Tensor& scale, const Tensor& shift) {
    return layer_norm(input, shape_, {.weight = scale, .bias = shift, .eps = eps_});
  };
  return function_ ? function_(norm, x, weight, bias) : norm(x, weight, bias);
}

RMSNorm::RMSNorm(Shape shape, RMSNormOptions options) : RMSNorm(nullptr, {}, shape, options) {}

RMSNorm::RMSNorm(Module* parent, std::string_view name, Shape shape, RMSNormOptions options)
    : Module(parent, name),
      weight(this, "weight", options.affine ? ones(shape) : Tensor()),
      shape_(shape),
      eps_(options.eps) {}

Tensor RMSNorm::forward(Tensor x) {
  const auto norm = [this](const Tensor& input, const Tensor& scale, const Tensor&) {
    return rms_norm(input, shape_, scale, eps_);
  };
  return function_ ? function_(norm, x, weight, {}) : norm(x, weight, {});
}

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, GroupNormOptions options)
    : GroupNorm(nullptr, {}, groups, channels, options) {}

GroupNorm::GroupNorm(Module* parent, std::string_view name, std::int64_t groups, std::int64_t channels,
                     GroupNormOptions options)
    : Module(parent, name),
      weight(this, "weight", options.affine ? ones({channels}) : Tensor()),
      bias(this, "bias", options.affine ? zeros({channels}) : Tensor()),
      groups_(groups),
      eps_(options.eps) {
  LOCKSTEP_CHECK(groups > 0 && channels % groups == 0,
                 "[GroupNorm] expected a number of groups that divides the {} channels, found {}", channels, groups);
}

Tensor GroupNorm::forward(Tensor x) {
  return group_norm(x, groups_, {.weight = weight, .bias = bias, .eps = eps_});
}

InstanceNorm::InstanceNorm(std::int64_t channels, InstanceNormOptions options)
    : InstanceNorm(nullptr, {}, channels, options) {}

InstanceNorm::InstanceNorm(Module* parent, std::string_view name, std::int64_t channels, InstanceNormOptions options)
    : Module(parent, name),
      weight(this, "weight", options.affine ? ones({channels}) : Tensor()),
      bias(this, "bias", options.affine ? zeros({channels}) : Tensor()),
      channels_(channels),
      eps_(options.eps) {}

Tensor InstanceNorm::forward(Tensor x) {
  LOCKSTEP_CHECK(x.dim() >= 3 && x.size(1) == channels_, "[InstanceNorm] expected x [N, {}, ...], found {}", channels_,
                 to_string(x.sizes()));
  LOCKSTEP_CHECK(!is_training() || x.numel() == 0 || x.numel() > x.size(0) * x.size(1),
                 "[InstanceNorm] expected more than one position in each channel while training, found {}",
                 to_string(x.sizes()));
  return group_norm(x, channels_, {.weight = weight, .bias = bias, .eps = eps_});
}

Tensor LocalResponseNorm::forward(Tensor x) {
  return local_response_norm(x, size_, alpha_, beta_, k_);
}

}  // namespace lockstep::nn
