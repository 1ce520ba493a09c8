#pragma once

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Drops elements with probability p while training, scales the others by 1 / (1 - p); see lockstep::dropout.
class Dropout : public Module {
 public:
  /// Throws Error unless 0 <= p <= 1.
  explicit Dropout(double p = 0.5);
  Dropout(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;

 private:
  double p_;
};

/// Drops whole channels of [n, c, h, w].
class Dropout2d : public Module {
 public:
  explicit Dropout2d(double p = 0.5);
  Dropout2d(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;

 private:
  double p_;
};

}  // namespace lockstep::nn
