#pragma once

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

#include "apps/models/models.h"
#include "bench/gpt.h"
#include "bench/lstm.h"
#include "bench/mixer.h"
#include "bench/mlp_gelu.h"
#include "bench/mobilenet.h"
#include "bench/resnet18.h"
#include "bench/train_rounds.h"
#include "bench/vit.h"

namespace lockstep::bench {

/// The models that bench/torch_train_throughput.py has too, by name.
inline std::unique_ptr<nn::Module> make_model(const std::string& name) {
  if (name == "resnet18") return std::make_unique<ResNet18>();
  if (name == "mobilenet") return std::make_unique<MobileNet>();
  if (name == "vit") return std::make_unique<Vit>();
  if (name == "mixer") return std::make_unique<Mixer>();
  if (name == "mlp_gelu") return std::make_unique<MlpGelu>();
  if (name == "lstm") return std::make_unique<Lstm>();
  if (name == "lstm_layer") return std::make_unique<LstmLayer>();
  if (const std::int64_t context = train_rounds::context_of(name); context > 0) return std::make_unique<Gpt>(context);
  return models::make_model(name == "cnn_plain" ? "cnn" : name);
}

/// Images [count, C, H, W] as the model takes them, of 60,000 small ones' pixels in all where count is not given.
inline Shape image_sizes(const std::string& model, std::int64_t count = 0) {
  if (train_rounds::takes_colour(model))
    return {count > 0 ? count : train_rounds::kImages * train_rounds::kPixels / 3072, 3, 32, 32};
  return {count > 0 ? count : train_rounds::kImages, 1, 28, 28};
}

/// What the model is trained by.
inline std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& model, std::vector<Tensor> parameters) {
  if (train_rounds::uses_adam(model))
    return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = train_rounds::kAdamRate});
  return std::make_unique<optim::SGD>(
      std::move(parameters), optim::SGDOptions{.lr = train_rounds::kLearningRate, .momentum = train_rounds::kMomentum});
}

}  // namespace lockstep::bench
