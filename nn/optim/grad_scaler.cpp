#include "lockstep/nn/optim/grad_scaler.h"

#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/gradients.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::GradUnscaleKernel> unscale_kernel{"GradScaler", detail::grad_unscale_cpu,
                                                                LOCKSTEP_CUDA_KERNEL(detail::grad_unscale_cuda)};

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

Tensor GradScaler::scale(const Tensor& loss) const {
  return loss * scale_;
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

bool GradScaler::unscale(Optimizer& optimizer) {
  LOCKSTEP_CHECK(stage_ == Stage::kScaled,
                 "[GradScaler] unscale() was already done for this iteration; call update() at its end");
  for (const Tensor& parameter : optimizer.parameters())
    LOCKSTEP_CHECK(!parameter.grad().defined() || parameter.grad().dtype() != DType::float16,
                   "[GradScaler] a gradient is float16 and could underflow when its scale is taken away; keep the "
                   "parameters in float32");
  finite_ = optimizer.scale_gradients(1.0 / scale_);
  stage_ = Stage::kUnscaled;
  return finite_;
}

bool GradScaler::step(Optimizer& optimizer) {
  LOCKSTEP_CHECK(stage_ != Stage::kStepped,
                 "[GradScaler] step() was already made in this iteration; call update() at "
                 "its end");
  if (stage_ == Stage::kScaled) unscale(optimizer);
  if (finite_) optimizer.step();
  stage_ = Stage::kStepped;
  return finite_;
}

void GradScaler::update() {
  LOCKSTEP_CHECK(stage_ != Stage::kScaled,
                 "[GradScaler] update() ends an iteration, but neither unscale() nor step() "
                 "was called since the last");
  stage_ = Stage::kScaled;
  if (!finite_) {
    scale_ *= options_.backoff_factor;
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    good_steps_ = 0;
  }
}

void GradScaler::load_state(const GradScalerState& state) {
  LOCKSTEP_CHECK(std::isfinite(state.scale) && state.scale > 0.0 && state.good_steps >= 0,
                 "[GradScaler] expected a positive scale and a number of steps, found {} and {}", state.scale,
                 state.good_steps);
  scale_ = state.scale;
  good_steps_ = state.good_steps;
  finite_ = true;
  stage_ = Stage::kScaled;
}

}  // namespace lockstep::optim
