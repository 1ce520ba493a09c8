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
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Stochastic gradient descent with torch.optim.SGD's formulas:
///   g = grad + weight_decay * p;  b = momentum * b + (1 - dampening) * g, at first b = g;
///   p -= lr * (nesterov ? g + momentum * b : momentum ? b : g)
class SGD final : public OptimizerWith<SGDOptions, &SGDOptions::momentum> {
 public:
  /// Throws Error for options out of range.
  explicit SGD(std::vector<Tensor> parameters, SGDOptions options = {});
  /// Each group with its own options.
  explicit SGD(std::vector<ParamGroup<SGDOptions>> groups);

  const char* name() const override { return "SGD"; }

 private:
  void check(const SGDOptions& options) const override;
  int form_of(const SGDOptions& options) const override;
  bool fits(const SGDOptions& options, int form) const override;
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

namespace detail {
enum SgdForm { kSgdPlain, kSgdMomentum, kSgdNesterov };
using SgdKernel = void(const Optimizer::Plan& plan);
SgdKernel sgd_cpu, sgd_cuda;
}  // namespace detail

}  // namespace lockstep::optim
