#include "lockstep/nn/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/gradients.h"
#include "lockstep/nn/optim/scaler_on_device.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::GradUnscaleKernel> unscale_kernel{"GradScaler", detail::grad_unscale_cpu,
                                                                LOCKSTEP_CUDA_KERNEL(detail::grad_unscale_cuda)};
constexpr KernelTable<detail::GradUnscaleByKernel> unscale_by_kernel{
    "GradScaler", nullptr, LOCKSTEP_CUDA_KERNEL(detail::grad_unscale_by_cuda)};
constexpr KernelTable<detail::ScalerUpdateKernel> update_kernel{"GradScaler", nullptr,
                                                                LOCKSTEP_CUDA_KERNEL(detail::scaler_update_cuda)};

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options), scale_(options.init_scale) {
  LOCKSTEP_CHECK(std::isfinite(scale_) && scale_ > 0.0, "[GradScaler] expected init_scale > 0, found {}", scale_);
  LOCKSTEP_CHECK(options.growth_factor > 1.0, "[GradScaler] expected growth_factor > 1, found {}",
                 options.growth_factor);
  LOCKSTEP_CHECK(options.backoff_factor > 0.0 && options.backoff_factor < 1.0,
                 "[GradScaler] expected 0 < backoff_factor < 1, found {}", options.backoff_factor);
  LOCKSTEP_CHECK(options.growth_interval >= 1, "[GradScaler] expected growth_interval >= 1, found {}",
                 options.growth_interval);
}

GradScaler::GradScaler(const GradScaler& other)
    : options_(other.options_), scale_(other.scale_factor()), good_steps_(other.good_steps_), turns_(other.turns_) {}

GradScaler& GradScaler::operator=(const GradScaler& other) {
  const GradScalerState state = other.state();
  options_ = other.options_;
  scale_ = state.scale;
  good_steps_ = state.good_steps;
  on_device_ = false;
  turns_ = other.turns_;
  return *this;
}

bool GradScaler::is_capturing() const {
  return device_ && cuda::is_capturing(device_->device().index);
}

GradScalerState GradScaler::state() const {
  if (on_device_) {
    const auto words = device_->read();
    scale_ = words[detail::kScale];
    good_steps_ = static_cast<std::int64_t>(words[detail::kGoodSteps]);
    on_device_ = false;
  }
  return {scale_, good_steps_};
}

Tensor GradScaler::scale(const Tensor& loss) const {
  if (!is_capturing()) return loss * scale_factor();
  // Multiplied in the type, and rounded as often, as by a number.
  const Tensor scale =
      cast_values(device_->words().as_strided({}, {}, detail::kScale), loss.dtype() == kFloat64 ? kFloat64 : kFloat32);
  return (loss * scale).to(loss.dtype());
}

Tensor GradScaler::unscaled(const Tensor& loss) const {
  if (!is_capturing()) return scalar_tensor(loss.item<double>() / scale_factor(), {.dtype = kFloat64});
  const NoGradGuard no_grad;
  return loss / device_->words().as_strided({}, {}, detail::kScale);
}

bool Optimizer::scale_gradients(double factor) {
  const NoGradGuard no_grad;
  std::vector<Tensor> flags;
  for (const detail::Gradients& gradients : detail::gradients_by_device(parameters())) {
    const Device device = gradients.front().device();
    flags.push_back(zeros({1}, {.dtype = kInt32, .device = device}));
    for (const Tensor& grad : gradients) grad.storage()->bump_version();
    unscale_kernel(gradients.front())(gradients, factor, flags.back());
  }
  bool finite = true;
  for (const Tensor& flag : flags) finite = finite && flag.item<std::int64_t>() == 0;
  return agree_ ? agree_(finite) : finite;
}

void GradScaler::check_gradients(const Optimizer& optimizer) const {
  for (const Tensor& parameter : optimizer.parameters())
    LOCKSTEP_CHECK(!parameter.grad().defined() || parameter.grad().dtype() != DType::float16,
                   "[GradScaler] a gradient is float16 and could underflow when its scale is taken away; keep the "
                   "parameters in float32");
}

GradScaler::Turn* GradScaler::turn_of(const Optimizer& optimizer) {
  const auto found =
      std::ranges::find_if(turns_, [&](const Turn& turn) { return turn.optimizer == std::addressof(optimizer); });
  return found == turns_.end() ? nullptr : std::to_address(found);
}

GradScaler::Turn& GradScaler::unscaled_turn(Optimizer& optimizer) {
  if (Turn* const made = turn_of(optimizer)) return *made;
  check_gradients(optimizer);
  turns_.push_back({.optimizer = &optimizer, .finite = optimizer.scale_gradients(1.0 / scale_factor())});
  return turns_.back();
}

bool GradScaler::unscale(Optimizer& optimizer) {
  LOCKSTEP_CHECK(!turn_of(optimizer),
                 "[GradScaler] unscale() was already done for this iteration; call update() at its end");
  return unscaled_turn(optimizer).finite;
}

bool GradScaler::step(Optimizer& optimizer) {
  Turn& turn = unscaled_turn(optimizer);
  LOCKSTEP_CHECK(!turn.stepped,
                 "[GradScaler] step() was already made in this iteration; call update() at "
                 "its end");
  if (turn.finite) optimizer.step();
  turn.stepped = true;
  return turn.finite;
}

void GradScaler::update() {
  LOCKSTEP_CHECK(!turns_.empty(),
                 "[GradScaler] update() ends an iteration, but neither unscale() nor step() "
                 "was called since the last");
  const bool finite = std::ranges::all_of(turns_, &Turn::finite);
  turns_.clear();
  state();  // of the device, if that has a later one
  if (!finite) {
    scale_ = std::max(scale_ * options_.backoff_factor, detail::kSmallestScale);
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    good_steps_ = 0;
  }
}

void GradScaler::prepare_capture(const Device& device) {
  if (!device_) device_ = std::make_shared<detail::ScalerOnDevice>(device);
  LOCKSTEP_CHECK(device_->device() == device,
                 "[GradScaler] steps on {} are to be captured, but it has scaled some on {}; use one for each device",
                 to_string(device), to_string(device_->device()));
}

void GradScaler::record_step(Optimizer& optimizer) {
  LOCKSTEP_CHECK(
      is_capturing(),
      "[GradScaler] record_step() is for work that is captured; call prepare_capture() before the capture, or "
      "step() and update() outside of one");
  LOCKSTEP_CHECK(!optimizer.has_agreement(),
                 "[GradScaler] ranks with different parameters agree on whether a gradient overflowed, which the host "
                 "does in each step");
  check_gradients(optimizer);
  const NoGradGuard no_grad;
  const Tensor& words = device_->words();
  for (const detail::Gradients& gradients : detail::gradients_by_device(optimizer.parameters())) {
    LOCKSTEP_CHECK(gradients.front().device() == device_->device(),
                   "[GradScaler] a gradient is on {}, but the captured step on {}",
                   to_string(gradients.front().device()), to_string(device_->device()));
    for (const Tensor& grad : gradients) grad.storage()->bump_version();
    unscale_by_kernel(gradients.front())(gradients, words);
  }
  optimizer.step();
  update_kernel(words)(words, options_.growth_factor, options_.backoff_factor, options_.growth_interval);
}

void GradScaler::prepare_replay(Optimizer& optimizer) {
  LOCKSTEP_CHECK(device_ && turns_.empty(),
                 "[GradScaler] prepare_replay() needs prepare_capture(), and update() at the end of a step without a "
                 "graph");
  if (!on_device_) device_->put(scale_, good_steps_);
  device_->wait_for_turn();
  optimizer.prepare_step(device_);
}

void GradScaler::replayed() {
  device_->launched(cuda::Stream::current(device_->device().index));
  on_device_ = true;
}

void GradScaler::load_state(const GradScalerState& state) {
  LOCKSTEP_CHECK(std::isfinite(state.scale) && state.scale > 0.0 && state.good_steps >= 0,
                 "[GradScaler] expected a positive scale and a number of steps, found {} and {}", state.scale,
                 state.good_steps);
  scale_ = state.scale;
  good_steps_ = state.good_steps;
  on_device_ = false;
  turns_.clear();
}

}  // namespace lockstep::optim
