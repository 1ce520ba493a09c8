#pragma once

#include <lockstep/lockstep.h>

namespace lockstep::bench {

/// A residual perceptron with layer norm, gelu and dropout, on images of 1 x 28 x 28.
struct MlpGelu : nn::Module {
  static constexpr std::int64_t kWidth = 512;

  Tensor forward(Tensor x) override {
    x = dropout1(gelu(norm1(fc1(x.flatten(1)))));
    x = x + dropout2(gelu(fc2(norm2(x))));
    x = x + dropout3(gelu(fc3(norm3(x))));
    return head(x);
  }

  nn::Linear fc1{this, "fc1", 784, kWidth}, fc2{this, "fc2", kWidth, kWidth}, fc3{this, "fc3", kWidth, kWidth};
  nn::LayerNorm norm1{this, "norm1", kWidth}, norm2{this, "norm2", kWidth}, norm3{this, "norm3", kWidth};
  nn::Dropout dropout1{this, "dropout1", 0.1}, dropout2{this, "dropout2", 0.1}, dropout3{this, "dropout3", 0.1};
  nn::Linear head{this, "head", kWidth, 10};
};

}  // namespace lockstep::bench
