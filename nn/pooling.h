#pragma once

#include "lockstep/autograd/ops/avg_pool2d/avg_pool2d.h"
#include "lockstep/autograd/ops/max_pool2d/max_pool2d.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// The functions of the same names as modules; their options are the functions' own.

/// Maximum over windows: [n, c, h, w] to [n, c, oh, ow]; see max_pool2d().
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(Size2d kernel, MaxPool2dOptions options = {}) : kernel_(kernel), options_(options) {}
  MaxPool2d(Module* parent, std::string_view name, Size2d kernel, MaxPool2dOptions options = {})
      : Module(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d kernel_;
  MaxPool2dOptions options_;
};

/// Mean over windows: [n, c, h, w] to [n, c, oh, ow]; see avg_pool2d().
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(Size2d kernel, AvgPool2dOptions options = {}) : kernel_(kernel), options_(options) {}
  AvgPool2d(Module* parent, std::string_view name, Size2d kernel, AvgPool2dOptions options = {})
      : Module(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d kernel_;
  AvgPool2dOptions options_;
};

/// Mean over as many windows as make `output` of any size: see adaptive_avg_pool2d().
class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(Size2d output) : output_(output) {}
  AdaptiveAvgPool2d(Module* parent, std::string_view name, Size2d output) : Module(parent, name), output_(output) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d output_;
};

}  // namespace lockstep::nn
