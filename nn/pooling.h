#pragma once

#include "lockstep/autograd/ops/avg_pool2d/avg_pool2d.h"
#include "lockstep/autograd/ops/max_pool2d/max_pool2d.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// The functions of the same names as modules; their options are the functions' own.

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

class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(Size2d output) : output_(output) {}
  AdaptiveAvgPool2d(Module* parent, std::string_view name, Size2d output) : Module(parent, name), output_(output) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d output_;
};

}  // namespace lockstep::nn
