#pragma once

#include <memory>

#include "apps/gpt/config.h"
#include "lockstep/nn/linear.h"

namespace lockstep::gpt {

/// A linear layer, with LoRA's two small ones beside it if the configuration has a rank: y = W x + b + alpha / rank *
/// lora_B(lora_A(x)). lora_B starts from 0, so that a new adapter changes nothing.
class Projection : public nn::Linear {
 public:
  Projection(nn::Module* parent, std::string_view name, std::int64_t in, std::int64_t out, bool bias,
             const LoraConfig& lora);
  Tensor forward(Tensor x) override;

  /// Adds what the adapter does to the weight and starts the adapter anew: outputs stay, up to rounding.
  void merge();

 private:
  std::unique_ptr<nn::Linear> a_, b_;  // null without LoRA
  double scale_ = 0.0;
};

}  // namespace lockstep::gpt
