#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/nn.h"

namespace lockstep::models {

/// 10-way classifiers of 28 x 28 grey images, [N, 1, 28, 28] -> logits [N, 10].

/// The small convolutional network of many MNIST examples, after LeCun et al. (1998): 21,840 parameters.
struct LeNet : nn::Module {
  using nn::Module::Module;
  nn::Conv2d conv1{this, "conv1", 1, 10, 5};
  nn::Conv2d conv2{this, "conv2", 10, 20, 5};
  nn::Linear fc1{this, "fc1", 320, 50};
  nn::Linear fc2{this, "fc2", 50, 10};
  Tensor forward(Tensor x) override;
};

/// The network of PyTorch's MNIST example, with dropout: 1,199,882 parameters.
struct Cnn : nn::Module {
  using nn::Module::Module;
  nn::Conv2d conv1{this, "conv1", 1, 32, 3};
  nn::Conv2d conv2{this, "conv2", 32, 64, 3};
  nn::Dropout dropout1{this, "dropout1", 0.25};
  nn::Linear fc1{this, "fc1", 9216, 128};
  nn::Dropout dropout2{this, "dropout2", 0.5};
  nn::Linear fc2{this, "fc2", 128, 10};
  Tensor forward(Tensor x) override;
};

/// LeNet with batch norm after each convolution: 21,900 parameters.
struct LeNetBn : nn::Module {
  using nn::Module::Module;
  nn::Conv2d conv1{this, "conv1", 1, 10, 5};
  nn::BatchNorm2d bn1{this, "bn1", 10};
  nn::Conv2d conv2{this, "conv2", 10, 20, 5};
  nn::BatchNorm2d bn2{this, "bn2", 20};
  nn::Linear fc1{this, "fc1", 320, 50};
  nn::Linear fc2{this, "fc2", 50, 10};
  Tensor forward(Tensor x) override;
};

/// 784-512-512-10 with relu: 669,706 parameters.
struct Mlp : nn::Module {
  using nn::Module::Module;
  nn::Linear fc1{this, "fc1", 784, 512};
  nn::Linear fc2{this, "fc2", 512, 512};
  nn::Linear fc3{this, "fc3", 512, 10};
  Tensor forward(Tensor x) override;
};

/// "lenet", "cnn", "mlp", "lenet-bn".
const std::vector<std::string>& model_names();

/// A new model with fresh weights. Throws Error, listing the names, for one it does not know.
std::unique_ptr<nn::Module> make_model(std::string_view name);

/// The name of the model whose weights a file holds, told by parameter names and shapes. Throws Error naming the file
/// if it is none of them.
std::string model_of(const nn::SafetensorsFile& file);

}  // namespace lockstep::models
