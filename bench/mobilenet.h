#pragma once

#include <lockstep/lockstep.h>

#include <memory>

namespace lockstep::bench {

/// An inverted residual of Sandler et al., "MobileNetV2" (2018): widen by 1 x 1, filter each channel by itself, narrow.
struct InvertedResidual : nn::Module {
  InvertedResidual(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t expansion)
      : expand(this, "expand", in, in * expansion, 1, {.bias = false}),
        bn1(this, "bn1", in * expansion),
        depthwise(this, "depthwise", in * expansion, in * expansion, 3,
                  {.stride = stride, .padding = 1, .groups = in * expansion, .bias = false}),
        bn2(this, "bn2", in * expansion),
        project(this, "project", in * expansion, out, 1, {.bias = false}),
        bn3(this, "bn3", out),
        around(in == out && stride == 1) {}

  Tensor forward(Tensor x) override {
    Tensor y = clamp(bn1(expand(x)), 0.0, 6.0);
    y = clamp(bn2(depthwise(y)), 0.0, 6.0);
    y = bn3(project(y));
    return around ? x + y : y;
  }

  nn::Conv2d expand;
  nn::BatchNorm2d bn1;
  nn::Conv2d depthwise;
  nn::BatchNorm2d bn2;
  nn::Conv2d project;
  nn::BatchNorm2d bn3;
  bool around;
};

/// A small MobileNet of its second version for images of 3 x 32 x 32.
struct MobileNet : nn::Module {
  MobileNet() {
    for (const auto& [in, out, stride] : {Layer{32, 16, 1},
                                          {16, 24, 1},
                                          {24, 24, 1},
                                          {24, 32, 2},
                                          {32, 32, 1},
                                          {32, 64, 2},
                                          {64, 64, 1},
                                          {64, 96, 1},
                                          {96, 160, 2},
                                          {160, 160, 1}})
      blocks.add(in, out, stride, 6);
  }

  Tensor forward(Tensor x) override {
    x = clamp(bn(stem(x)), 0.0, 6.0);
    for (InvertedResidual& block : blocks) x = block(x);
    x = clamp(bn_last(last(x)), 0.0, 6.0);
    return head(x.mean({2, 3}));
  }

  struct Layer {
    std::int64_t in, out, stride;
  };
  nn::Conv2d stem{this, "stem", 3, 32, 3, {.padding = 1, .bias = false}};
  nn::BatchNorm2d bn{this, "bn", 32};
  nn::ModuleList<InvertedResidual> blocks{this, "blocks"};
  nn::Conv2d last{this, "last", 160, 640, 1, {.bias = false}};
  nn::BatchNorm2d bn_last{this, "bn_last", 640};
  nn::Linear head{this, "head", 640, 10};
};

}  // namespace lockstep::bench
