#pragma once

#include <cstdint>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// The functions of the same names as modules, for Sequential.

/// max(x, 0), element by element; see relu().
class ReLU : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x where x > 0, negative_slope * x elsewhere; see leaky_relu().
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double negative_slope = 0.01) : negative_slope_(negative_slope) {}
  LeakyReLU(Module* parent, std::string_view name, double negative_slope = 0.01)
      : Module(parent, name), negative_slope_(negative_slope) {}
  Tensor forward(Tensor x) override;

 private:
  double negative_slope_;
};

/// x times the normal distribution function of x; see gelu().
class GELU : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x * sigmoid(x); see silu().
class SiLU : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// Hyperbolic tangent, element by element.
class Tanh : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// 1 / (1 + exp(-x)), element by element.
class Sigmoid : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// exp(x) divided by its sum over `dim`; see softmax().
class Softmax : public Module {
 public:
  explicit Softmax(std::int64_t dim = -1) : dim_(dim) {}
  Softmax(Module* parent, std::string_view name, std::int64_t dim = -1) : Module(parent, name), dim_(dim) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t dim_;
};

/// Merges dimensions start_dim to end_dim; by default all but the batch.
class Flatten : public Module {
 public:
  explicit Flatten(std::int64_t start_dim = 1, std::int64_t end_dim = -1) : start_dim_(start_dim), end_dim_(end_dim) {}
  Flatten(Module* parent, std::string_view name, std::int64_t start_dim = 1, std::int64_t end_dim = -1)
      : Module(parent, name), start_dim_(start_dim), end_dim_(end_dim) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t start_dim_;
  std::int64_t end_dim_;
};

/// Returns its input.
class Identity : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

}  // namespace lockstep::nn
