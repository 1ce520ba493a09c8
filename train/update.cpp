#include "lockstep/train/update.h"

#include <optional>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep::train {

using distributed::LossValue;

Update::Update(distributed::TrainingStep& step, optim::Optimizer& optimizer, Options options)
    : step_(step),
      optimizer_(optimizer),
      amp_(options.amp),
      graph_(options.graph),
      captured_(step, optimizer, {.capture = options.graph && options.amp != kFloat16}) {
  LOCKSTEP_CHECK(amp_ == kFloat32 || amp_ == kFloat16 || amp_ == kBFloat16,
                 "[run] mixed precision in {} was asked for, expected float16 or bfloat16 (float32: none)", name(amp_));
  if (amp_ == kFloat16) scaler_ = options.scaler ? options.scaler : std::make_shared<optim::GradScaler>();
}

Tensor Update::operator()(const data::Batch& batch, const LossFunction& loss,
                          const std::function<void()>& on_gradients) {
  const LossFunction loss_of = [&](nn::Module& net, const data::Batch& part) -> LossValue {
    std::optional<AutocastGuard> autocast;
    if (amp_ != kFloat32) autocast.emplace(amp_, net.device().type);
    const LossValue value = loss(net, part);
    if (!scaler_) return value;
    const Tensor scaled = scaler_->scale(value.value());
    return value.count() ? LossValue::sum(scaled, *value.count()) : LossValue(scaled);
  };
  if (!scaler_ && !on_gradients) return captured_(batch, loss_of);
  Tensor value = step_(batch, loss_of);
  if (scaler_) {
    value = scalar_tensor(value.item<double>() / scaler_->scale_factor(), {.dtype = kFloat64});
    if (on_gradients) {
      scaler_->unscale(optimizer_);
      on_gradients();
    }
    scaler_->step(optimizer_);
    scaler_->update();
  } else {
    on_gradients();
    optimizer_.step();
  }
  return value;
}

std::string Update::obstacle() const {
  if (!graph_ || !step_.module().device().is_cuda()) return {};
  return scaler_ ? "whether float16 gradients overflowed is read each step" : captured_.obstacle();
}

}  // namespace lockstep::train
