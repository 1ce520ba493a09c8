#pragma once

#include <lockstep/lockstep.h>

#include <memory>

namespace lockstep::bench {

/// Two 3 x 3 convolutions and a way around them, as of He et al., "Deep Residual Learning" (2016).
struct ResidualBlock : nn::Module {
  ResidualBlock(nn::Module* parent, std::string_view name, std::int64_t in, std::int64_t out, std::int64_t stride)
      : Module(parent, name),
        conv1(this, "conv1", in, out, 3, {.stride = stride, .padding = 1, .bias = false}),
        bn1(this, "bn1", out),
        conv2(this, "conv2", out, out, 3, {.padding = 1, .bias = false}),
        bn2(this, "bn2", out) {
    if (in == out && stride == 1) return;
    conv3 = std::make_unique<nn::Conv2d>(this, "conv3", in, out, 1, nn::Conv2dOptions{.stride = stride, .bias = false});
    bn3 = std::make_unique<nn::BatchNorm2d>(this, "bn3", out);
  }
  Tensor forward(Tensor x) override {
    const Tensor around = conv3 ? (*bn3)((*conv3)(x)) : x;
    const Tensor through = bn2(conv2(relu(bn1(conv1(x)))));
    return relu(through + around);
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  std::unique_ptr<nn::Conv2d> conv3;
  std::unique_ptr<nn::BatchNorm2d> bn3;
};

/// ResNet-18 for images of 3 x 32 x 32: 11,173,962 parameters.
struct ResNet18 : nn::Module {
  nn::Conv2d conv1{this, "conv1", 3, 64, 3, {.padding = 1, .bias = false}};
  nn::BatchNorm2d bn1{this, "bn1", 64};
  ResidualBlock block1{this, "block1", 64, 64, 1}, block2{this, "block2", 64, 64, 1};
  ResidualBlock block3{this, "block3", 64, 128, 2}, block4{this, "block4", 128, 128, 1};
  ResidualBlock block5{this, "block5", 128, 256, 2}, block6{this, "block6", 256, 256, 1};
  ResidualBlock block7{this, "block7", 256, 512, 2}, block8{this, "block8", 512, 512, 1};
  nn::Linear fc{this, "fc", 512, 10};

  Tensor forward(Tensor x) override {
    x = relu(bn1(conv1(x)));
    for (ResidualBlock* block : {&block1, &block2, &block3, &block4, &block5, &block6, &block7, &block8})
      x = (*block)(x);
    return fc(x.mean({2, 3}));
  }
};

}  // namespace lockstep::bench
