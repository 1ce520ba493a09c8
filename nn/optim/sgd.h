#pragma once

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Options of SGD.
struct SGDOptions {
  double lr = 1e-3;           ///< learning rate
  double momentum = 0.0;      ///< share of the last step's velocity that is kept; 0: none is stored
  double dampening = 0.0;     ///< share of the gradient that does not go into the velocity
  double weight_decay = 0.0;  ///< times the parameter, added to its gradient
  bool nesterov = false;      ///< needs momentum > 0 and dampening 0
};

/// Stochastic gradient descent with torch.optim.SGD's formulas:
///   g = grad + weight_decay * p;  b = momentum * b + (1 - dampening) * g, at first b = g;
///   p -= lr * (nesterov ? g + momentum * b : momentum ? b : g)
class SGD final : public Optimizer {
 public:
  /// Throws Error for options out of range.
  explicit SGD(std::vector<Tensor> parameters, SGDOptions options = {});

  const char* name() const override { return "SGD"; }
  double momentum() const override { return options_.momentum; }
  /// Throws Error if the optimizer was made with momentum 0: it keeps no buffers then.
  void set_momentum(double value) override;

 private:
  void scalars(std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings() const override;

  SGDOptions options_;
};

namespace detail {
using SgdKernel = void(const Optimizer::Plan& plan, bool nesterov);
SgdKernel sgd_cpu, sgd_cuda;
}  // namespace detail

}  // namespace lockstep::optim
