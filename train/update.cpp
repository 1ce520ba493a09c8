#include "lockstep/train/update.h"

#include <optional>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/check.h"

namespace lockstep::training {

using distributed::LossValue;

Update::Update(distributed::TrainingStep& step, optim::Optimizer& optimizer, Options options)
    : step_(step),
      optimizer_(optimizer),
      amp_(options.amp),
      graph_(options.graph),
      max_grad_norm_(options.max_grad_norm),
      scaler_(amp_ != kFloat16 ? nullptr
              : options.scaler ? options.scaler
                               : std::make_shared<optim::GradScaler>()),
      captured_(step, optimizer,
                {.capture = options.graph, .scaler = scaler_.get(), .max_grad_norm = options.max_grad_norm}) {
  LOCKSTEP_CHECK(amp_ == kFloat32 || amp_ == kFloat16 || amp_ == kBFloat16,
                 "[run] mixed precision in {} was asked for, expected float16 or bfloat16 (float32: none)", name(amp_));
}

Tensor Update::operator()(const data::Batch& batch, const LossFunction& loss, const std::function<void()>& on_gradients,
                          const std::function<void()>& before_update) {
  const bool captured = !on_gradients && !before_update;
  const LossFunction loss_of = [&](nn::Module& net, const data::Batch& part) -> LossValue {
    std::optional<AutocastGuard> autocast;
    if (amp_ != kFloat32) autocast.emplace(amp_, net.device().type);
    const LossValue value = loss(net, part);
    if (!scaler_ || captured) return value;
    const Tensor scaled = scaler_->scale(value.value());
    return value.count() ? LossValue::sum(scaled, *value.count()) : LossValue(scaled);
  };
  if (captured) return captured_(batch, loss_of);
  Tensor value = step_(batch, loss_of);
  if (scaler_) {
    value = scaler_->unscaled(value);
    scaler_->unscale(optimizer_);
  }
  if (on_gradients) on_gradients();
  if (max_grad_norm_ > 0.0) optimizer_.clip_grad_norm_(max_grad_norm_);
  if (before_update) before_update();
  if (scaler_) {
    scaler_->step(optimizer_);
    scaler_->update();
  } else {
    optimizer_.step();
  }
  return value;
}

std::string Update::obstacle() const {
  if (!graph_ || !step_.module().device().is_cuda()) return {};
  return captured_.obstacle();
}

}  // namespace lockstep::training
