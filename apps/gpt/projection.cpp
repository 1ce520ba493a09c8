#include "apps/gpt/projection.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/nn/init.h"

namespace lockstep::gpt {

Projection::Projection(nn::Module* parent, std::string_view name, std::int64_t in, std::int64_t out, bool bias,
                       const LoraConfig& lora)
    : nn::Linear(parent, name, in, out, {.bias = bias}) {
  if (lora.rank == 0) return;
  a_ = std::make_unique<nn::Linear>(this, "lora_A", in, lora.rank, nn::LinearOptions{.bias = false});
  b_ = std::make_unique<nn::Linear>(this, "lora_B", lora.rank, out, nn::LinearOptions{.bias = false});
  scale_ = lora.alpha / static_cast<double>(lora.rank);
  nn::init::zeros_(b_->weight);
}

Tensor Projection::forward(Tensor x) {
  const Tensor y = nn::Linear::forward(x);
  return a_ ? y.add((*b_)((*a_)(x)), scale_) : y;
}

void Projection::merge() {
  if (!a_) return;
  const NoGradGuard values_only;
  weight.add_(matmul(b_->weight, a_->weight), scale_);
  nn::init::zeros_(b_->weight);
}

}  // namespace lockstep::gpt
